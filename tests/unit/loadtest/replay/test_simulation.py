from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loadtest.replay.fleet import slower
from loadtest.replay.policies.catalogue import CATALOGUE, find
from loadtest.replay.simulation import Conditions, Simulation
from router.core import Role
from router.observability.events import Outcome
from tests.support.replay import PROFILE, SIZE, Fixed, Recorder, ask, fleet, member, replayed, workload

P, D = Role.PREFILL, Role.DECODE


def test_one_request_takes_what_the_engines_constants_say() -> None:
    (result,) = replayed(workload(ask(0, 1.0, range(10), output=11)), "default").results
    assert result.ttft_s == pytest.approx(161 / 1000)
    assert result.tpot_s == pytest.approx(0.01)
    assert result.e2e_s == pytest.approx(0.161 + 0.1)


def test_observers_are_told_what_the_directors_observers_are_in_that_order() -> None:
    recorder = Recorder()
    replayed(workload(ask(0, 1.0, range(10), output=11)), Fixed("e1").contestant, None, recorder)
    assert [what for what, _ in recorder.told] == ["decision", "dispatch decode e1", "first token", "end ok"]
    (first,), (ended,) = recorder.first, recorder.ended
    assert first.since_dispatch_s == first.ttft_s == pytest.approx(0.161)
    assert (ended.endpoint_id, ended.output_tokens, ended.prompt_tokens) == ("e1", 11, 161)
    assert ended.itl_s == pytest.approx(0.01)


def test_a_prefix_is_a_match_where_it_was_computed_and_costs_nothing_there() -> None:
    policy = Fixed("e1")
    run = replayed(workload(ask(0, 0.0, range(10)), ask(1, 5.0, range(20))), policy.contestant)
    assert {name: c.match.blocks for name, c in policy.seen[1].items()} == {"e0": 0, "e1": 10}
    assert run.results[1].cached == 10 * SIZE
    assert run.results[1].ttft_s == pytest.approx(161 / 1000)


def test_until_its_events_come_a_dispatched_prompt_is_speculated_then_forgotten() -> None:
    policy = Fixed("e1")
    load = workload(*(ask(n, at, range(10)) for n, at in enumerate((0.0, 0.05, 10.0, 30.0))))
    replayed(load, policy.contestant, event_lag_s=20.0)
    assert [seen["e1"].match.blocks for seen in policy.seen] == [0, 10, 0, 10]


def test_without_events_the_index_knows_what_was_dispatched() -> None:
    policy = Fixed("e1")
    load = workload(ask(0, 0.0, range(10)), ask(1, 10.0, range(10)))
    replayed(load, policy.contestant, exact=False)
    assert policy.seen[1]["e1"].match.blocks == 10


def test_own_in_flight_requests_are_counted_exactly_and_metrics_are_as_old_as_asked() -> None:
    load = workload(*(ask(n, 0.01 * n, range(100 * n, 100 * n + 20), output=200) for n in range(6)))
    fresh, stale, blind = Fixed("e1"), Fixed("e1"), Fixed("e1")
    replayed(load, fresh.contestant, metrics_age_s=0.0)
    replayed(load, stale.contestant, metrics_age_s=60.0)
    replayed(load, blind.contestant, metrics_age_s=None)
    seen = fresh.seen[5]["e1"]
    assert seen.inflight.requests == 5
    assert seen.state.metrics is not None
    assert (seen.state.metrics.running or 0) + (seen.state.metrics.waiting or 0) == 5
    assert seen.metrics_age == 0.0
    old = stale.seen[5]["e1"]
    assert old.inflight.requests == 5
    assert old.state.metrics is not None and old.state.metrics.running == 0
    assert old.metrics_age == pytest.approx(0.05)
    assert blind.seen[5]["e1"].state.metrics is None


def test_a_turn_waits_for_the_answer_before_it_and_its_think_time() -> None:
    first, second = ask(0, 0.0, range(10), session=7), ask(1, 0.0, range(12), session=7, think=2.0)
    run = replayed(workload(first, second), "default")
    assert run.results[1].at == pytest.approx(run.results[0].e2e_s + 2.0)


def test_in_a_disaggregated_pool_prefill_hand_off_and_decode_follow_each_other() -> None:
    recorder = Recorder()
    pool = fleet(member("p", P), member("d", D))
    policy = Fixed("d", prefill=["p"])
    (result,) = replayed(
        workload(ask(0, 0.0, range(10), output=3)),
        policy.contestant,
        pool,
        recorder,
        transfer_s=0.5,
        transfer_token_s=0.001,
    ).results
    told = [what for what, _ in recorder.told]
    assert told[:2] == ["decision", "dispatch prefill p"]
    assert told[-3:] == ["dispatch decode d", "first token", "end ok"]
    # Prefill, transfer of the prompt, its last token computed anew.
    assert result.ttft_s == pytest.approx(0.161 + 0.5 + 0.161 + 0.001)
    assert (result.endpoint, result.prefill_endpoint) == ("d", "p")
    (ended,) = recorder.ended
    assert ended.prefill_s == pytest.approx(0.161)


def test_what_the_prefill_engine_had_is_the_hit_of_a_handed_over_prompt() -> None:
    pool = fleet(member("p", P), member("d", D))
    load = workload(ask(0, 0.0, range(10)), ask(1, 9.0, range(20)))
    run = replayed(load, Fixed("d", prefill=["p"]).contestant, pool)
    assert [result.cached for result in run.results] == [0, 10 * SIZE]


def test_many_hand_offs_leave_no_lease_and_no_pinned_block_behind() -> None:
    pool = fleet(member("p0", P), member("p1", P), member("d", D))
    load = workload(*(ask(n, 0.02 * n, range(30 * n, 30 * n + 25)) for n in range(60)))
    policy = Fixed("d", prefill=["p0"])
    last = ask(60, 1000.0, range(3))
    replayed(workload(*load.requests, last), policy.contestant, pool)
    after = policy.seen[-1]
    for candidate in after.values():
        assert candidate.inflight.requests == 0
        assert candidate.state.metrics is not None and candidate.state.metrics.kv_usage == 0.0


def test_a_dying_engines_requests_go_on_elsewhere_unless_their_answer_had_begun() -> None:
    recorder = Recorder()
    load = workload(
        ask(0, 0.0, range(10), output=500), ask(1, 0.9, range(100, 120)), ask(2, 1.5, range(3)), ask(3, 4.0, range(3))
    )
    policy = Fixed("e0", "e1")
    run = replayed(load, policy.contestant, fleet(deaths=[(1.0, "e0")]), recorder, detect_s=1.0)
    outcomes = {result.number: (result.outcome, result.endpoint) for result in run.results}
    assert outcomes[0] == (Outcome.CUT, "e0")
    assert outcomes[1] == (Outcome.OK, "e1")
    assert ("failed broken e0", "r1") in recorder.told
    assert ("failed refused e0", "r2") in recorder.told
    assert "e0" not in policy.seen[3]
    assert policy.seen[3]["e1"].inflight.requests == 0


def test_an_engine_joins_cold() -> None:
    policy = Fixed("e0")
    load = workload(ask(0, 0.0, range(10)), ask(1, 5.0, range(10)))
    replayed(load, policy.contestant, fleet(member("e0"), joins=[(2.0, member("e9"))]))
    assert "e9" not in policy.seen[0]
    assert policy.seen[1]["e9"].match.blocks == 0


def test_slower_engines_take_longer_by_that_factor() -> None:
    load = workload(ask(0, 0.0, range(10)))
    slow = fleet(member("e0", profile=slower(PROFILE, 0.25)))
    (normal,), (late,) = replayed(load, "default").results, replayed(load, "default", slow).results
    assert late.e2e_s == pytest.approx(4 * normal.e2e_s)


def test_what_no_engine_could_hold_is_an_error_and_not_a_wait() -> None:
    (result,) = replayed(workload(ask(0, 0.0, range(1200))), "default").results
    assert (result.outcome, result.ttft_s) == (Outcome.CLIENT_ERROR, None)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
@pytest.mark.parametrize("roles", [(), (P, P, D)])
def test_every_policy_answers_everything_and_a_seed_gives_one_run(name: str, roles: tuple[Role, ...]) -> None:
    pool = fleet(*(member(f"e{i}", role) for i, role in enumerate(roles)))
    load = workload(*(ask(n, 0.1 * n, [0, n % 7, *range(100 + n, 110 + n)], session=n % 5) for n in range(80)))
    once, again = replayed(load, name, pool), replayed(load, name, pool)
    assert all(result.outcome is Outcome.OK for result in once.results)
    assert list(once.results) == list(again.results)
    assert len({result.endpoint for result in once.results}) == (1 if roles else 2)


def test_one_shared_cache_is_hit_from_every_engine() -> None:
    load = workload(*(ask(n, 0.001 * n if n else 0.0, range(20)) for n in range(40)))
    run = replayed(workload(*load.requests, ask(40, 50.0, range(20)), ask(41, 50.0, range(20))), "pooled")
    late = [result for result in run.results if result.number >= 40]
    assert all(result.cached == 20 * SIZE for result in late)
    assert {result.endpoint for result in late} == {"e0", "e1"}


def test_a_learning_policy_comes_to_predict_the_engines_it_is_replayed_on() -> None:
    load = workload(*(ask(n, 1.3 * n, range(100 * n, 100 * n + 20 + n % 40), output=30) for n in range(120)))
    recorder = Recorder()
    replayed(load, "default", None, recorder)
    errors = [abs(f.predicted_s - f.since_dispatch_s) / f.since_dispatch_s for f in recorder.first if f.predicted_s]
    assert len(errors) == 120
    assert max(errors[-20:]) < 0.1


@pytest.mark.parametrize("metrics_age_s", [0.0, 0.1, 5.0])
def test_through_months_without_a_request_hardly_anything_is_done(metrics_age_s: float) -> None:
    steps: list[float] = []

    class Counting(Simulation):
        def _push(self, at: float, act: Callable[[Any], None], what: Any) -> None:
            steps.append(at)
            super()._push(at, act, what)

    conditions = Conditions(metrics_age_s=metrics_age_s)
    load = workload(ask(0, 0.0, [1]), ask(1, 1e7, [1]))
    run = Counting(load, find("llm-d"), fleet(), conditions, seed=1).run()
    assert [result.cached for result in run.results] == [0, SIZE]
    assert len(steps) < 3000


@pytest.mark.parametrize("metrics_age_s", [0.1, 5.0])
def test_metrics_are_as_fresh_behind_a_long_pause_as_before_it(metrics_age_s: float) -> None:
    policy = Fixed("e0")
    replayed(workload(ask(0, 0.0, [1]), ask(1, 1e6, [1])), policy.contestant, metrics_age_s=metrics_age_s)
    age = policy.seen[1]["e0"].metrics_age
    assert age is not None and age <= metrics_age_s + 1e-6
