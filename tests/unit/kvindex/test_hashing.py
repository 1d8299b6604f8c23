"""The chain of block hashes: golden vectors from a second implementation, and what must and must not collide."""

from __future__ import annotations

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvindex.hashing import block_hashes, chain_root
from tests.support.kvindex import reference_hashes, reference_root, xxh64

GOLDEN_ROOT = 0xFB347CEE22A41660
GOLDEN_LORA_ROOT = 0x048F1245C31EBAD6
GOLDEN_CHAIN = [0x5F76C56AC7AE7C03, 0x868834F2C7BF0E07, 0xAE833071C4F70087]
GOLDEN_SALTED = [0xDC497B0FE4DB9DC9, 0xD6CA0308E96B7C9E, 0x946117F716FA308F]

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=80)


@given(st.binary(max_size=200))
def test_the_reference_is_xxh64(data: bytes) -> None:
    assert xxh64(data) == xxhash.xxh64_intdigest(data)


@given(TOKENS, st.integers(1, 20), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
def test_hashes_equal_the_reference(tokens: list[int], block_size: int, salt: str) -> None:
    root = chain_root("model")
    expected = reference_hashes(tokens, block_size, root, salt)
    assert block_hashes(array("I", tokens), block_size, root, cache_salt=salt) == expected


def test_roots_equal_the_reference() -> None:
    assert chain_root("Qwen/Qwen3-8B") == reference_root("Qwen/Qwen3-8B")
    assert chain_root("Qwen/Qwen3-8B", "sql") == reference_root("Qwen/Qwen3-8B", "sql")


def test_golden_vectors() -> None:
    # Made once with tests.support.kvindex (xxh64 in plain integers): stored keys must outlive a release.
    assert chain_root("tiny") == GOLDEN_ROOT
    assert chain_root("tiny", "lora-a") == GOLDEN_LORA_ROOT
    assert block_hashes(range(10, 60), 16, GOLDEN_ROOT) == GOLDEN_CHAIN
    assert block_hashes(range(10, 60), 16, GOLDEN_ROOT, cache_salt="tenant-a") == GOLDEN_SALTED


def test_only_full_blocks_are_hashed() -> None:
    assert block_hashes(range(15), 16, 1) == []
    assert len(block_hashes(range(33), 16, 1)) == 2


@given(TOKENS, st.integers(1, 9), st.integers(0, 5))
def test_a_chain_continues_from_any_of_its_blocks(tokens: list[int], block_size: int, cut: int) -> None:
    whole = block_hashes(tokens, block_size, 7)
    cut = min(cut, len(whole))
    head = block_hashes(tokens[: cut * block_size], block_size, 7)
    tail = block_hashes(tokens[cut * block_size :], block_size, head[-1] if head else 7)
    assert head + tail == whole


def test_a_difference_changes_every_later_hash_and_no_earlier_one() -> None:
    tokens = array("I", range(160))
    changed = tokens[:]
    changed[50] += 1
    before, after = block_hashes(tokens, 16, 1), block_hashes(changed, 16, 1)
    assert before[:3] == after[:3]
    assert all(a != b for a, b in zip(before[3:], after[3:], strict=True))


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4], (1, 2, 3, 4), range(1, 5), array("i", [1, 2, 3, 4])])
def test_any_sequence_of_ints_hashes_like_the_array(tokens: list[int]) -> None:
    assert block_hashes(tokens, 2, 9) == block_hashes(array("I", [1, 2, 3, 4]), 2, 9)


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "1", None])
def test_what_is_no_token_id_is_refused_without_being_shown(bad: object) -> None:
    with pytest.raises(ValueError, match="whole numbers from 0 to 4294967295"):
        block_hashes([1, bad], 1, 0)  # type: ignore[list-item]


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size is 0"):
        block_hashes([1], 0, 0)


def test_adapters_salts_and_extras_have_key_spaces_of_their_own() -> None:
    tokens, base = range(32), chain_root("m")
    chains = [
        block_hashes(tokens, 16, base),
        block_hashes(tokens, 16, chain_root("m", "x")),
        block_hashes(tokens, 16, base, cache_salt="x"),
        block_hashes(tokens, 16, chain_root("x")),
        block_hashes(tokens, 16, chain_root("m", "")),
        block_hashes(tokens, 16, base, extras={0: [("image", b"x")]}),
        block_hashes(tokens, 16, base, extras={0: [("imag", b"ex")]}),
        block_hashes(tokens, 16, base, extras={0: [("image", b"x"), ("image", b"")]}),
        block_hashes(tokens, 16, chain_root("ab"), cache_salt="c"),
        block_hashes(tokens, 16, chain_root("a"), cache_salt="bc"),
    ]
    assert len({hash_ for chain in chains for hash_ in chain}) == 2 * len(chains)


def test_an_extra_enters_its_own_block() -> None:
    plain = block_hashes(range(64), 16, 1)
    marked = block_hashes(range(64), 16, 1, extras={2: [("image", b"x")], 9: [("image", b"beyond the prompt")]})
    assert marked[:2] == plain[:2]
    assert marked[2] != plain[2]
    assert marked[3] == block_hashes(range(48, 64), 16, marked[2])[0]


def test_an_empty_salt_is_no_salt() -> None:
    assert block_hashes(range(16), 16, 1, cache_salt="") == block_hashes(range(16), 16, 1)


def test_a_salt_with_a_lone_surrogate_is_hashed() -> None:
    assert block_hashes(range(16), 16, 1, cache_salt="\ud800") != block_hashes(range(16), 16, 1)
