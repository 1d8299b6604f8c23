"""What is played is smaller and faster, and takes the same part of its time as the original."""

from __future__ import annotations

import msgspec
import pytest

from loadtest.replay.results import Slo, Window, summarize
from loadtest.replay.synthetic import make
from loadtest.replay_over_http.reduced import Reduction, reduced_profile, reduced_workload
from loadtest.simulator.settings import find_profile
from tests.support.replay import SIZE, ask, fleet, member, replayed, workload

BY = Reduction(tokens=8, times=4.0)


def test_prefill_and_steps_of_the_same_work_take_a_quarter_of_the_time() -> None:
    whole, small = find_profile("70b-tp4"), reduced_profile(find_profile("70b-tp4"), BY)
    assert small.prefill_s(1000, 500) == pytest.approx(whole.prefill_s(8000, 4000) / 4)
    # One step of the small engine gives one token, which stands for eight.
    assert small.decode_s(10, 5000) == pytest.approx(8 * whole.decode_s(10, 40_000) / 4)
    assert small.kv_tokens * 8 == whole.kv_tokens
    assert small.chunk * 8 == whole.chunk


def test_the_same_blocks_come_at_a_quarter_of_the_time() -> None:
    load = workload(
        ask(0, 10.0, [1, 2], tail=9, output=80), ask(1, 14.0, [1, 2, 3], tail=15, output=3), ask(2, 90.0, [4])
    )
    small = reduced_workload(load, BY, seconds=5.0)
    assert small.block_size == SIZE // 8
    assert [request.at for request in small.requests] == [0.0, 1.0]
    assert [request.blocks for request in small.requests] == [[1, 2], [1, 2, 3]]
    assert [request.prompt for request in small.requests] == [2 * 2 + 1, 3 * 2 + 1]
    assert [request.output for request in small.requests] == [10, 1]


def test_blocks_that_cannot_be_shrunk_so_far_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 16 tokens cannot be made 5 times smaller"):
        reduced_workload(workload(ask(0, 0.0, [])), Reduction(tokens=5), seconds=1.0)


def test_a_replay_of_the_reduced_load_is_a_replay_of_the_load_in_another_time() -> None:
    load = make("hot-document")
    load = msgspec.structs.replace(load, requests=load.requests[:600])
    by = Reduction(tokens=2, times=4.0)
    profile, small = find_profile("70b-tp4"), reduced_profile(find_profile("70b-tp4"), by)
    seen = [
        summarize(
            replayed(each, "lmetric", fleet(*(member(f"e{n}", profile=engine) for n in range(8)))),
            (Slo(2.0, 0.05),),
            Window(),
        )
        for each, engine in ((load, profile), (reduced_workload(load, by, 1e9), small))
    ]
    assert 4 * seen[1].ttft.mean == pytest.approx(seen[0].ttft.mean, rel=0.1)
    assert 4 * seen[1].e2e.mean == pytest.approx(seen[0].e2e.mean, rel=0.05)
    assert seen[1].hit_rate == pytest.approx(seen[0].hit_rate, abs=0.03)
