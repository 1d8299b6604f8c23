from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Endpoint, Health, IndexState, ModelCard, Role
from router.errors import ConfigError
from router.pool.facts import KvEventSource
from router.pool.health import HealthPolicy
from router.pool.observers import PoolObserver
from router.pool.pool import Pool
from router.pool.reading import read_page
from router.pool.spec import EndpointSpec, KvEventsSpec
from router.ports import EndpointPool
from tests.support.pool import Recorder, page, pool_of

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def ids(pool: Pool) -> list[str]:
    return [state.endpoint.id for state in pool.snapshot()]


def health(pool: Pool, endpoint_id: str) -> Health:
    state = pool.get(endpoint_id)
    assert state is not None
    return state.health


def sources(*ranks: int) -> dict[int, KvEventSource]:
    return {rank: KvEventSource(endpoint=f"tcp://a:{5557 + rank}", global_rank=rank) for rank in ranks}


async def test_it_is_an_endpoint_pool_also_while_nobody_watches_the_engines() -> None:
    pool = Pool()
    seen: EndpointPool = pool
    await pool.refresh_models()
    assert seen.snapshot() == ()


def test_endpoints_appear_unknown_and_in_the_configured_order() -> None:
    pool = pool_of(C, A, B)
    assert ids(pool) == ["c:1", "a:1", "b:1"]
    assert {state.health for state in pool.snapshot()} == {Health.UNKNOWN}


def test_the_snapshot_is_the_same_object_until_something_changes() -> None:
    pool = pool_of(A, B)
    first = pool.snapshot()
    pool.probe_ok("a:1")
    second = pool.snapshot()
    assert second is not first
    assert second[1] is first[1]
    pool.probe_ok("a:1")
    pool.report_success(second[0].endpoint)
    pool.set_index("a:1", IndexState.APPROXIMATE)
    pool.set_endpoints([EndpointSpec(url=A), EndpointSpec(url=B)])
    assert pool.snapshot() is second


def test_mwk_05_a_snapshot_in_use_never_changes_under_its_reader() -> None:
    pool = pool_of(A, B, C)
    seen = []
    for state in pool.snapshot():
        seen.append(state.endpoint.id)
        pool.set_endpoints([EndpointSpec(url=C)])
        pool.probe_failed("c:1", "refused")
    assert seen == ["a:1", "b:1", "c:1"]
    assert ids(pool) == ["c:1"]


def test_a_reload_adds_removes_reorders_and_keeps_what_is_known_of_the_rest() -> None:
    pool = pool_of(A, B)
    pool.probe_ok("b:1")
    told = Recorder()
    pool.add_observer(told)
    told.take()
    pool.set_endpoints([EndpointSpec(url=C), EndpointSpec(url=B)])
    assert ids(pool) == ["c:1", "b:1"]
    assert health(pool, "b:1") is Health.HEALTHY
    assert told.take() == [("unwatch", "a:1"), ("removed", "a:1"), ("added", "c:1"), ("watch", "c:1")]
    assert pool.get("a:1") is None


def test_a_changed_role_keeps_health_a_changed_url_under_the_same_name_does_not() -> None:
    pool = Pool()
    pool.set_endpoints([EndpointSpec(url=A, name="e")])
    pool.probe_ok("e")
    pool.set_endpoints([EndpointSpec(url=A, name="e", role=Role.PREFILL)])
    state = pool.get("e")
    assert state is not None
    assert (state.endpoint.role, state.health) == (Role.PREFILL, Health.HEALTHY)
    told = Recorder()
    pool.add_observer(told)
    told.take()
    pool.set_endpoints([EndpointSpec(url=B, name="e")])
    assert health(pool, "e") is Health.UNKNOWN
    assert told.take() == [("unwatch", "e"), ("removed", "e"), ("added", "e"), ("watch", "e")]


def test_sources_add_up_and_each_replaces_only_its_own() -> None:
    pool = Pool()
    pool.set_endpoints([EndpointSpec(url=A)], source="file")
    pool.set_endpoints([EndpointSpec(url=A, role=Role.DECODE), EndpointSpec(url=B)], source="dns")
    assert ids(pool) == ["a:1", "b:1"]
    assert pool.snapshot()[0].endpoint.role is Role.BOTH
    pool.set_endpoints([], source="file")
    assert pool.snapshot()[0].endpoint.role is Role.DECODE
    pool.set_endpoints([], source="dns")
    assert pool.snapshot() == ()


@pytest.mark.parametrize(
    "specs",
    [
        [EndpointSpec(url=A), EndpointSpec(url=A, role=Role.PREFILL)],
        [EndpointSpec(url=A, name="x"), EndpointSpec(url=B, name="x")],
        [EndpointSpec(url=A, name="x", data_parallel_size=2), EndpointSpec(url=B, name="x/0")],
    ],
)
def test_a_list_that_names_an_endpoint_twice_is_refused_and_changes_nothing(specs: list[EndpointSpec]) -> None:
    pool = pool_of(C)
    with pytest.raises(ConfigError, match="listed twice"):
        pool.set_endpoints(specs)
    assert ids(pool) == ["c:1"]


def test_failed_requests_in_a_row_take_an_endpoint_out_until_a_probe_succeeds() -> None:
    pool = pool_of(A, B)
    pool.probe_ok("a:1")
    pool.probe_ok("b:1")
    endpoint = pool.snapshot()[0].endpoint
    for _ in range(3):
        pool.report_failure(endpoint)
    assert health(pool, "a:1") is Health.UNHEALTHY
    pool.report_success(endpoint)
    assert health(pool, "a:1") is Health.UNHEALTHY
    pool.probe_ok("a:1")
    assert health(pool, "a:1") is Health.HEALTHY
    assert health(pool, "b:1") is Health.HEALTHY


def test_errors_answered_in_a_row_take_it_out_and_one_good_answer_starts_the_count_anew() -> None:
    pool = pool_of(A, B)
    pool.probe_ok("a:1")
    pool.probe_ok("b:1")
    endpoint = pool.snapshot()[0].endpoint
    for _ in range(4):
        pool.report_error(endpoint)
    pool.report_success(endpoint)
    for _ in range(4):
        pool.report_error(endpoint)
    assert pool.usable("a:1")
    pool.report_error(endpoint)
    assert not pool.usable("a:1")
    assert pool.reasons()["a:1"] == "5 errors in a row answered"


def test_requests_never_take_out_the_last_one_in_service() -> None:
    pool = pool_of(A, B)
    pool.probe_ok("a:1")
    pool.probe_failed("b:1", "refused")
    for _ in range(10):
        pool.report_failure(pool.snapshot()[0].endpoint)
    assert pool.usable("a:1")
    assert not pool.stands_still("a:1")
    # As soon as there is somebody to stand in, what was noted counts.
    pool.probe_ok("b:1")
    pool.probe_ok("b:1")
    pool.report_failure(pool.snapshot()[0].endpoint)
    assert not pool.usable("a:1")


def test_whether_an_endpoint_is_waited_for_is_told_when_it_changes() -> None:
    told: list[tuple[str, bool]] = []

    class Trust(PoolObserver):
        def trust_changed(self, url: str, trusted: bool) -> None:
            told.append((url, trusted))

    pool = pool_of(A, B)
    pool.add_observer(Trust())
    for name in ("a:1", "b:1"):
        pool.probe_ok(name)
    for _ in range(3):
        pool.report_failure(pool.snapshot()[0].endpoint)
    # Failing requests do not speak for those that wait; the probe that fails too does.
    assert told == []
    pool.probe_failed("a:1", "timeout")
    assert told == [(A, False)]
    pool.probe_ok("a:1")
    pool.probe_ok("a:1")
    assert told == [(A, False), (A, True)]
    pool.held("b:1", "paused")
    pool.set_endpoints([EndpointSpec(url=A)])
    assert told[2:] == [(B, False), (B, True)]


def test_an_engine_that_stands_still_is_out_until_it_moves_and_then_on_trial() -> None:
    pool = pool_of(A, B)
    for name in ("a:1", "b:1"):
        pool.probe_ok(name)
    assert pool.stands_still("a:1")
    assert (health(pool, "a:1"), pool.reasons()["a:1"]) == (Health.UNHEALTHY, "stands still")
    pool.probe_ok("a:1")
    assert not pool.usable("a:1")
    pool.moves("a:1")
    assert pool.usable("a:1")
    assert pool.snapshot()[0].on_trial


def test_a_return_into_service_is_dated_and_the_end_of_a_drain_is_none() -> None:
    now = 5.0
    pool = Pool(HealthPolicy(probes_up=1, probes_down=1), clock=lambda: now)
    pool.set_endpoints([EndpointSpec(url=A)])
    assert pool.snapshot()[0].since is None
    pool.probe_ok("a:1")
    assert pool.snapshot()[0].since == 5.0
    now = 6.0
    pool.drain("a:1")
    pool.drain("a:1", draining=False)
    assert pool.snapshot()[0].since == 5.0
    pool.probe_failed("a:1", "timeout")
    now = 7.0
    pool.probe_ok("a:1")
    assert pool.snapshot()[0].since == 7.0


def test_reports_about_an_endpoint_that_has_gone_do_nothing() -> None:
    pool = pool_of(A)
    gone = Endpoint(id="gone:1", url="http://gone:1")
    pool.report_failure(gone)
    pool.report_success(gone)
    pool.probe_ok("gone:1")
    pool.probe_failed("gone:1", "refused")
    pool.scrape_failed("gone:1")
    pool.read_page("gone:1", read_page(page(), 1.0))
    pool.learn("gone:1", at=1.0, version="1")
    pool.set_index("gone:1", IndexState.EXACT)
    assert not pool.drain("gone:1")
    assert ids(pool) == ["a:1"]


def test_a_drained_endpoint_stays_visible_and_draining_whatever_probes_say() -> None:
    pool = pool_of(A)
    assert pool.drain("a:1")
    pool.probe_ok("a:1")
    pool.probe_failed("a:1", "refused")
    assert health(pool, "a:1") is Health.DRAINING
    assert pool.drain("a:1", draining=False)
    pool.probe_ok("a:1")
    assert health(pool, "a:1") is Health.HEALTHY


def test_health_changes_are_told_once_each() -> None:
    pool = Pool(HealthPolicy(probes_up=1, probes_down=1))
    pool.set_endpoints([EndpointSpec(url=A)])
    told = Recorder()
    pool.add_observer(told)
    told.take()
    pool.probe_ok("a:1")
    pool.probe_ok("a:1")
    pool.probe_failed("a:1", "timeout")
    pool.probe_failed("a:1", "refused")
    assert told.take() == [("unknown -> healthy", "a:1"), ("healthy -> unhealthy", "a:1")]


def test_a_sleeping_engine_is_unhealthy_although_it_answers_its_probes() -> None:
    pool = pool_of(A)
    pool.probe_ok("a:1")
    pool.read_page("a:1", read_page(page(awake=0), 1.0))
    assert health(pool, "a:1") is Health.UNHEALTHY
    pool.read_page("a:1", read_page(page(awake=1), 2.0))
    assert health(pool, "a:1") is Health.HEALTHY


def test_a_page_gives_load_blocks_and_incarnation_and_its_age_counts_from_the_asking() -> None:
    pool = pool_of(A)
    pool.read_page("a:1", read_page(page(running=3, waiting=2, usage=0.5, start=1.7e9), 12.5))
    state = pool.get("a:1")
    assert state is not None
    assert state.metrics is not None
    assert (state.metrics.running, state.metrics.waiting, state.metrics.kv_usage) == (3, 2, 0.5)
    assert state.metrics.taken_at == 12.5
    assert (state.block_size, state.num_blocks, state.process_start) == (16, 100, 1.7e9)


def test_a_late_answer_does_not_replace_a_newer_one() -> None:
    pool = pool_of(A)
    pool.read_page("a:1", read_page(page(running=1), 20.0))
    pool.read_page("a:1", read_page(page(running=9), 10.0))
    metrics = pool.snapshot()[0].metrics
    assert metrics is not None
    assert metrics.running == 1


def test_a_failed_scrape_keeps_the_old_metrics_to_age() -> None:
    pool = pool_of(A)
    pool.read_page("a:1", read_page(page(running=1), 20.0))
    before = pool.snapshot()
    pool.scrape_failed("a:1")
    assert pool.snapshot() is before


def test_another_process_start_is_a_restart_and_asks_for_discovery_again() -> None:
    pool = pool_of(A)
    told = Recorder()
    pool.add_observer(told)
    pool.learn("a:1", at=1.0, models={"m": ModelCard(id="m")}, complete=True)
    pool.read_page("a:1", read_page(page(start=100.0), 1.0))
    pool.read_page("a:1", read_page(page(start=100.0), 2.0))
    assert ("restarted", "a:1") not in told.take()
    pool.read_page("a:1", read_page(page(start=200.0), 3.0))
    assert told.take() == [("restarted", "a:1")]
    record = pool.record("a:1")
    assert record is not None
    assert record.discovered_at is None


def test_an_engine_that_hides_its_incarnation_counts_as_restarted_when_it_returns() -> None:
    pool = Pool(HealthPolicy(probes_up=1, probes_down=1))
    pool.set_endpoints([EndpointSpec(url=A)])
    told = Recorder()
    pool.add_observer(told)
    pool.probe_ok("a:1")
    pool.read_page("a:1", read_page(page(start=None), 1.0))
    pool.probe_failed("a:1", "refused")
    told.take()
    pool.probe_ok("a:1")
    assert told.take() == [("unhealthy -> healthy", "a:1"), ("restarted", "a:1")]


def test_an_engine_that_shows_its_incarnation_is_not_restarted_by_a_blip() -> None:
    pool = Pool(HealthPolicy(probes_up=1, probes_down=1))
    pool.set_endpoints([EndpointSpec(url=A)])
    pool.read_page("a:1", read_page(page(start=100.0), 1.0))
    told = Recorder()
    pool.add_observer(told)
    pool.probe_failed("a:1", "timeout")
    pool.probe_ok("a:1")
    pool.read_page("a:1", read_page(page(start=100.0), 2.0))
    assert "restarted" not in [word for word, _ in told.take()]


def test_ranks_replace_the_single_endpoint_once_the_engine_shows_them() -> None:
    pool = pool_of(A, B)
    told = Recorder()
    pool.add_observer(told)
    told.take()
    pool.read_page("a:1", read_page(page(running=1, engines=2, first_engine=2), 1.0))
    assert ids(pool) == ["a:1/0", "a:1/1", "b:1"]
    assert told.take() == [("removed", "a:1"), ("added", "a:1/0"), ("added", "a:1/1")]
    first, second, _ = pool.snapshot()
    assert (first.endpoint.rank, second.endpoint.rank) == (0, 1)
    assert first.metrics is not None
    assert second.metrics is not None
    assert (first.metrics.running, second.metrics.running) == (1, 2)


def test_ranks_share_health_and_models_and_go_together() -> None:
    pool = pool_of(A, B)
    pool.read_page("a:1", read_page(page(engines=2), 1.0))
    pool.learn("a:1", at=1.0, models={"m": ModelCard(id="m")})
    pool.probe_ok("a:1")
    pool.probe_ok("b:1")
    assert [(state.health, list(state.models)) for state in pool.snapshot()[:2]] == [(Health.HEALTHY, ["m"])] * 2
    for _ in range(3):
        pool.report_failure(pool.snapshot()[1].endpoint)
    assert {state.health for state in pool.snapshot()[:2]} == {Health.UNHEALTHY}
    assert pool.drain("a:1/1")
    assert {state.health for state in pool.snapshot()[:2]} == {Health.DRAINING}


def test_a_server_of_one_rank_of_a_group_is_one_endpoint_with_that_ranks_source() -> None:
    pool = pool_of(A)
    told = Recorder()
    pool.add_observer(told)
    told.take()
    pool.learn("a:1", at=1.0, sources=sources(3))
    pool.read_page("a:1", read_page(page(running=4, first_engine=3), 1.0))
    (state,) = pool.snapshot()
    assert state.endpoint.rank is None
    assert state.metrics is not None
    assert state.metrics.running == 4
    assert state.block_size == 16
    assert told.take() == [("source tcp://a:5560", "a:1")]


def test_event_sources_are_told_when_found_changed_and_lost() -> None:
    pool = pool_of(A)
    pool.learn("a:1", at=1.0, sources=sources(0))
    told = Recorder()
    pool.add_observer(told)
    assert told.take() == [("added", "a:1"), ("source tcp://a:5557", "a:1"), ("watch", "a:1")]
    pool.learn("a:1", at=2.0, sources=sources(0))
    assert told.take() == []
    pool.learn("a:1", at=3.0, sources=sources(0, 1))
    assert told.take() == [
        ("removed", "a:1"),
        ("added", "a:1/0"),
        ("source tcp://a:5557", "a:1/0"),
        ("added", "a:1/1"),
        ("source tcp://a:5558", "a:1/1"),
    ]
    pool.learn("a:1", at=4.0, sources={})
    assert [word for word, _ in told.take()] == ["removed", "removed", "added"]


def test_a_configured_event_source_goes_before_the_engines_own_and_counts_up_over_ranks() -> None:
    pool = Pool()
    told = Recorder()
    pool.add_observer(told)
    events = KvEventsSpec(endpoint="tcp://*:7000", replay_endpoint="tcp://*:8000")
    pool.set_endpoints([EndpointSpec(url=A, kv_events=events, data_parallel_size=2)])
    assert [entry for entry in told.take() if "source" in entry[0]] == [
        ("source tcp://a:7000", "a:1/0"),
        ("source tcp://a:7001", "a:1/1"),
    ]


def test_configured_model_names_stand_in_for_the_discovered_ones() -> None:
    pool = Pool()
    pool.set_endpoints([EndpointSpec(url=A, models=("alias", "m"))])
    card = ModelCard(id="m", root="/models/m", raw=b'{"id":"m","x":1}')
    pool.learn("a:1", at=1.0, models={"m": card, "other": ModelCard(id="other")})
    models = pool.snapshot()[0].models
    assert list(models) == ["alias", "m"]
    assert models["m"] is card


def test_index_state_follows_the_endpoint_and_not_its_successor() -> None:
    pool = pool_of(A)
    pool.set_index("a:1", IndexState.EXACT)
    assert pool.snapshot()[0].index is IndexState.EXACT
    pool.set_endpoints([])
    pool.set_endpoints([EndpointSpec(url=A)])
    assert pool.snapshot()[0].index is IndexState.APPROXIMATE


def test_index_state_does_not_outlive_the_endpoint_that_became_ranks() -> None:
    pool = pool_of(A)
    pool.set_index("a:1", IndexState.EXACT)
    pool.read_page("a:1", read_page(page(engines=2), 1.0))
    pool.read_page("a:1", read_page(page(engines=1), 2.0))
    assert ids(pool) == ["a:1"]
    assert pool.snapshot()[0].index is IndexState.APPROXIMATE


def test_learning_what_is_known_already_changes_nothing() -> None:
    pool = pool_of(A)
    for _ in range(2):
        before = pool.snapshot()
        pool.learn("a:1", at=1.0, models={"m": ModelCard(id="m")}, version="1", sources=sources(0))
    assert pool.snapshot() is before


class Meddler(Recorder):
    """An observer that changes the pool from within a call."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool

    def kv_source_changed(self, endpoint: Endpoint, source: KvEventSource | None) -> None:
        self._pool.set_index(endpoint.id, IndexState.EXACT)


def test_an_observer_may_change_the_pool_while_it_is_told() -> None:
    pool = Pool()
    pool.add_observer(Meddler(pool))
    events = KvEventsSpec(endpoint="tcp://*:7000")
    pool.set_endpoints([EndpointSpec(url=A, kv_events=events, data_parallel_size=2), EndpointSpec(url=B)])
    assert [state.index for state in pool.snapshot()] == [IndexState.EXACT, IndexState.EXACT, IndexState.APPROXIMATE]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.lists(st.sampled_from([A, B, C]), unique=True)),
        st.tuples(st.just("ranks"), st.tuples(st.sampled_from(["a:1", "b:1", "c:1"]), st.integers(1, 3))),
        st.tuples(st.just("ok"), st.sampled_from(["a:1", "b:1", "c:1"])),
        st.tuples(st.just("bad"), st.sampled_from(["a:1", "b:1", "c:1"])),
    ),
    max_size=30,
)


@given(STEPS)
def test_what_observers_were_told_always_adds_up_to_the_snapshot(steps: list[tuple[str, Any]]) -> None:
    pool, told = Pool(), Recorder()
    pool.add_observer(told)
    present: set[str] = set()
    for at, (kind, what) in enumerate(steps):
        if kind == "set":
            pool.set_endpoints([EndpointSpec(url=url) for url in what])
        elif kind == "ranks":
            pool.read_page(what[0], read_page(page(engines=what[1]), float(at)))
        elif kind == "ok":
            pool.probe_ok(what)
        else:
            pool.probe_failed(what, "refused")
        for word, endpoint_id in told.take():
            if word == "added":
                assert endpoint_id not in present
                present.add(endpoint_id)
            elif word == "removed":
                present.remove(endpoint_id)
        assert present == set(ids(pool))
        assert all(pool.get(endpoint_id) is not None for endpoint_id in present)


def test_what_is_seen_after_a_change_of_policy_is_judged_by_the_new_one() -> None:
    pool = Pool(HealthPolicy(probes_up=1, probes_down=3))
    pool.set_endpoints([EndpointSpec(url=A)])
    pool.probe_ok("a:1")
    pool.probe_failed("a:1", "refused")
    pool.judge_by(HealthPolicy(probes_up=1, probes_down=2), max_ejected_share=1.0)
    assert health(pool, "a:1") is Health.HEALTHY, "the change itself takes nobody out"
    pool.probe_failed("a:1", "refused")
    assert health(pool, "a:1") is Health.UNHEALTHY
