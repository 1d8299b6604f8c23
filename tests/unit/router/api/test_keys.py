from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.keys import NOBODY, Key, KeyRing
from router.errors import Unauthorized


def key(text: str) -> Key:
    return Key(digest=hashlib.sha256(text.encode()).digest(), name=text)


def ring(*keys: str) -> KeyRing:
    return KeyRing(map(key, keys))


def test_without_keys_everybody_may() -> None:
    assert KeyRing().open
    assert KeyRing().authorize([(b"authorization", b"Bearer whatever")]) == NOBODY


@pytest.mark.parametrize(
    "field", [(b"authorization", b"Bearer k2"), (b"authorization", b"bearer k2"), (b"x-api-key", b"k2")]
)
def test_any_of_the_keys_opens_in_openais_and_anthropics_form(field: tuple[bytes, bytes]) -> None:
    assert ring("k1", "k2").authorize([field]).name == "k2"


@pytest.mark.parametrize(
    "field", [(b"authorization", b"Bearer k"), (b"authorization", b"Basic k1"), (b"x-other", b"k1")]
)
def test_anything_else_does_not(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(Unauthorized):
        ring("k1").authorize([field])


@given(st.sets(st.text(min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5), st.binary(max_size=40))
def test_nobody_gets_in_but_by_a_key_of_the_ring(keys: set[str], presented: bytes) -> None:
    known = {text.encode() for text in keys}
    for credential in (*known, presented):
        try:
            opened = ring(*keys).authorize([(b"x-api-key", credential)])
        except Unauthorized:
            assert credential.strip() not in known
        else:
            assert opened.name.encode() == credential.strip()


def test_the_digest_of_a_key_is_not_the_key() -> None:
    with pytest.raises(Unauthorized):
        ring("k1").authorize([(b"x-api-key", hashlib.sha256(b"k1").hexdigest().encode())])


def test_keys_are_not_kept_in_the_clear() -> None:
    kept = KeyRing([Key(digest=hashlib.sha256(b"secret-key").digest())])
    assert b"secret-key" not in b"".join((*kept._keys, *(known.digest for known in kept._keys.values())))
