"""Blocks are numbered in order of appearance, alike for alike, and forgotten when they were not seen for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.observability.requestlog_lines import BlockNumbers


@given(chains=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20))
def test_numbers_are_the_same_for_the_same_blocks(chains: list[list[int]]) -> None:
    numbers = BlockNumbers()
    known: dict[int, int] = {}
    for chain in chains:
        told = [first + i for first, count in numbers.runs(chain) for i in range(count)]
        assert len(told) == len(chain)
        for block, number in zip(chain, told, strict=True):
            assert known.setdefault(block, number) == number
    assert len(set(known.values())) == len(known)


def test_blocks_not_seen_for_long_are_forgotten() -> None:
    numbers = BlockNumbers(limit=100)
    assert numbers.runs([1]) == [[0, 1]]
    numbers.runs(range(1000, 1110))
    assert numbers.runs([1])[0][0] != 0
    assert numbers.runs(range(1080, 1090)) == [[81, 10]]
