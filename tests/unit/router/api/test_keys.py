from __future__ import annotations

import pytest

from router.api.keys import KeyRing
from router.errors import Unauthorized


def test_without_keys_everybody_may() -> None:
    KeyRing().authorize([])


@pytest.mark.parametrize(
    "field", [(b"authorization", b"Bearer k2"), (b"authorization", b"bearer k2"), (b"x-api-key", b"k2")]
)
def test_any_of_the_keys_opens_in_openais_and_anthropics_form(field: tuple[bytes, bytes]) -> None:
    KeyRing(["k1", "k2"]).authorize([field])


@pytest.mark.parametrize(
    "field", [(b"authorization", b"Bearer k"), (b"authorization", b"Basic k1"), (b"x-other", b"k1")]
)
def test_anything_else_does_not(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(Unauthorized):
        KeyRing(["k1"]).authorize([field])


def test_keys_are_not_kept_in_the_clear() -> None:
    ring = KeyRing(["secret-key"])
    assert all(b"secret-key" not in digest for digest in ring._digests)
