"""Traces: both ways to write block ids, damage named by its line, ticks spread, and a generator with real reuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.traces import TraceError, TraceRequest, generate, read_trace, reuse, spread, take, write_trace


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    requests = generate(4, sessions=6)
    write_trace(tmp_path / name, requests)
    assert read_trace(tmp_path / name) == requests


def test_ids_may_stand_one_by_one_or_run_by_run(tmp_path: Path) -> None:
    lines = [
        '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0, 1, 2, 7]}',
        "",
        '{"timestamp": 1, "input_length": 9, "output_length": 1, "hash_ids": [[0, 3], [7, 1]], "session": 2, "x": 1}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    plain, runs = read_trace(tmp_path / "t.jsonl")
    assert list(plain.hash_ids()) == list(runs.hash_ids()) == [0, 1, 2, 7]
    assert runs.session == 2


@pytest.mark.parametrize("line", ["{", '{"timestamp": 0}', '{"timestamp": "x", "input_length": 1, "output_length": 1}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    good = '{"timestamp": 0, "input_length": 1, "output_length": 1}'
    (tmp_path / "t.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(TraceError, match="line 2"):
        read_trace(tmp_path / "t.jsonl")


def test_requests_of_one_tick_are_spread_up_to_the_next() -> None:
    ticks = [0, 0, 0, 3000, 3000, 6000]
    requests = [TraceRequest(timestamp=at, input_length=1, output_length=1) for at in ticks]
    assert [request.timestamp for request in spread(requests)] == [0, 1000, 2000, 3000, 4500, 6000]


@given(st.lists(st.integers(0, 20).map(float)).map(sorted))
def test_spreading_keeps_order_and_number(times: list[float]) -> None:
    requests = [TraceRequest(timestamp=at, input_length=1, output_length=1) for at in times]
    after = [request.timestamp for request in spread(requests)]
    assert after == sorted(after)
    assert len(after) == len(times)
    assert all(later >= before for before, later in zip(times, after, strict=True))


def test_a_generated_trace_is_sorted_repeatable_and_full_of_reuse() -> None:
    requests = generate(2, sessions=40)
    assert requests == generate(2, sessions=40)
    assert requests != generate(3, sessions=40)
    assert requests == sorted(requests, key=lambda request: request.timestamp)
    assert 0.4 < reuse(requests) < 0.95


def test_a_generated_session_only_ever_grows() -> None:
    held: dict[int, list[int]] = {}
    for request in generate(5, sessions=10):
        assert request.session is not None
        ids = list(request.hash_ids())
        before = held.get(request.session, [])
        assert ids[: len(before)] == before
        assert (len(ids) - 1) * 512 < request.input_length <= len(ids) * 512
        held[request.session] = ids


def test_processes_share_a_trace_without_gap_or_repetition() -> None:
    requests = generate(1)
    parts = [list(take(requests, index, 3)) for index in range(3)]
    assert sorted((request for part in parts for request in part), key=requests.index) == requests
