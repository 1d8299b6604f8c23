"""Prober, scraper and monitor together, over fake engines and time that moves only when told."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from router.core import Health
from router.observability.supervisor import Supervisor
from router.pool.monitor import Monitor
from router.pool.pool import Pool
from router.pool.prober import ProbePolicy, Prober
from router.pool.scraper import ScrapePolicy, Scraper
from router.pool.spec import EndpointSpec
from tests.support.pool import FakeCalls, FakeEngine, Recorder, VirtualTime, event_sources, page

A, B = "http://a:1", "http://b:1"


class World:
    def __init__(self, engines: Mapping[str, FakeEngine]) -> None:
        self.time = VirtualTime()
        self.engines = engines
        self.calls = FakeCalls(engines, self.time)
        self.pool = Pool()
        self.pool.set_endpoints([EndpointSpec(url=url) for url in engines])
        self.supervisor = Supervisor(clock=self.time.clock, sleep=self.time.sleep, rng=random.Random(1))
        self.scraper = Scraper(
            self.pool, self.calls, clock=self.time.clock, policy=ScrapePolicy(interval_s=1.0, timeout_s=2.0)
        )
        self.prober = Prober(
            self.pool,
            self.calls,
            self.scraper,
            clock=self.time.clock,
            policy=ProbePolicy(interval_s=2.0, timeout_s=2.0, refresh_models_s=30.0),
        )
        self.monitor = Monitor(
            self.pool,
            self.prober,
            self.scraper,
            self.supervisor,
            clock=self.time.clock,
            sleep=self.time.sleep,
            rng=random.Random(2),
        )

    def health(self) -> dict[str, Health]:
        return {state.endpoint.id: state.health for state in self.pool.snapshot()}


@asynccontextmanager
async def watched(engines: Mapping[str, FakeEngine]) -> AsyncIterator[World]:
    world = World(engines)
    world.monitor.start()
    try:
        yield world
    finally:
        await world.monitor.stop()
        await world.supervisor.aclose()


async def test_everything_an_engine_tells_is_known_after_the_first_round() -> None:
    engine = FakeEngine(models=("m", "lora"), metrics=page(running=2), sources=event_sources(0))
    world = World({A: engine})
    told = Recorder()
    world.pool.add_observer(told)
    await world.monitor.probe_all()
    (state,) = world.pool.snapshot()
    assert state.health is Health.HEALTHY
    assert list(state.models) == ["m", "lora"]
    assert (state.version, state.block_size, state.num_blocks) == ("0.32.0", 16, 100)
    assert state.metrics is not None
    assert (state.metrics.running, state.metrics.taken_at) == (2, world.time.now)
    assert ("source tcp://a:5557", "a:1") in told.take()


async def test_keys_go_to_their_own_engine() -> None:
    engines = {A: FakeEngine(), B: FakeEngine()}
    world = World(engines)
    world.pool.set_endpoints([EndpointSpec(url=A, api_key="ka"), EndpointSpec(url=B)])
    await world.monitor.probe_all()
    assert (engines[A].keys, engines[B].keys) == ({"ka"}, {None})


async def test_hlt_02_an_engine_that_is_down_at_the_start_is_picked_up_when_it_appears() -> None:
    async with watched({A: FakeEngine()}) as world:
        engine = FakeEngine()
        engine.down = "refused"
        world.calls.engines[B] = engine
        world.pool.set_endpoints([EndpointSpec(url=A), EndpointSpec(url=B)])
        await world.time.advance(10)
        assert world.health() == {"a:1": Health.HEALTHY, "b:1": Health.UNHEALTHY}
        engine.down = None
        await world.time.advance(10)
        assert world.health() == {"a:1": Health.HEALTHY, "b:1": Health.HEALTHY}
        assert list(world.pool.snapshot()[1].models) == ["m"]


async def test_hlt_04_an_engine_whose_probes_hang_delays_nobody_elses() -> None:
    hanging, dying = FakeEngine(), FakeEngine()
    async with watched({A: hanging, B: dying}) as world:
        await world.time.advance(5)
        hanging.answers["/health"] = None
        dying.down = "refused"
        # Two failed probes, an interval apart with its jitter, and no time-out in between.
        await world.time.advance(2 * 2.2 + 0.1)
        assert world.health()["b:1"] is Health.UNHEALTHY
        await world.time.advance(10)
        assert world.health() == {"a:1": Health.UNHEALTHY, "b:1": Health.UNHEALTHY}


async def test_an_answer_other_than_2xx_is_a_failed_probe() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(3)
        engine.answers["/health"] = 503
        await world.time.advance(5)
        assert world.health() == {"a:1": Health.UNHEALTHY}


async def test_metrics_come_once_a_second_and_age_when_they_stop() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(20)
        assert 18 <= engine.calls.count("/metrics") <= 24
        engine.answers["/metrics"] = 500
        await world.time.advance(10)
        metrics = world.pool.snapshot()[0].metrics
        assert metrics is not None
        assert world.time.now - metrics.taken_at >= 9
        assert world.health() == {"a:1": Health.HEALTHY}


async def test_a_page_dates_from_before_the_call() -> None:
    engine = FakeEngine()
    world = World({A: engine})
    asked_at = world.time.now
    engine.answers["/metrics"] = None
    scrape = asyncio.create_task(world.scraper.scrape("a:1"))
    await world.time.advance(2.5)
    await scrape
    assert world.pool.snapshot()[0].metrics is None
    engine.answers["/metrics"] = page()
    await world.scraper.scrape("a:1")
    metrics = world.pool.snapshot()[0].metrics
    assert metrics is not None
    assert metrics.taken_at == asked_at + 2.5


async def test_values_that_cannot_be_are_said_once_and_the_engine_is_neither_full_nor_new(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = FakeEngine(metrics=page(usage=math.inf, running=-5, waiting=1, start=math.nan))
    async with watched({A: engine}) as world:
        await world.time.advance(10)
        engine.answers["/metrics"] = page()
        await world.time.advance(5)
        engine.answers["/metrics"] = page(usage=math.inf, waiting=3)
        await world.time.advance(5)
        metrics = world.pool.snapshot()[0].metrics
    assert metrics is not None
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (0, 3, None)
    said = sorted(record.getMessage() for record in caplog.records if "cannot be" in record.getMessage())
    assert said == [
        "endpoint a:1 says process_start_time_seconds nan, which cannot be: such values count as not told",
        "endpoint a:1 says vllm:kv_cache_usage_perc inf, which cannot be: such values count as not told",
        "endpoint a:1 says vllm:num_requests_running -5, which cannot be: such values count as not told",
    ]


async def test_models_are_asked_again_from_time_to_time_and_not_at_each_probe() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        engine.answers_models("m", "adapter")
        await world.time.advance(20)
        assert list(world.pool.snapshot()[0].models) == ["m"]
        await world.time.advance(20)
        assert list(world.pool.snapshot()[0].models) == ["m", "adapter"]
        assert engine.calls.count("/v1/models") == 2


async def test_models_are_asked_on_demand_once_for_all_who_wait_and_at_most_once_a_second() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        engine.answers_models("m", "adapter")
        await asyncio.gather(*(world.pool.refresh_models() for _ in range(10)))
        assert list(world.pool.snapshot()[0].models) == ["m", "adapter"]
        await world.monitor.refresh_models()
        assert engine.calls.count("/v1/models") == 2
        await world.time.advance(1)
        await world.monitor.refresh_models()
        assert engine.calls.count("/v1/models") == 3


async def test_a_waiter_that_leaves_does_not_end_the_round_for_the_others() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        engine.answers["/v1/models"] = None
        leaver = asyncio.create_task(world.monitor.refresh_models())
        stayer = asyncio.create_task(world.monitor.refresh_models())
        await world.time.settle()
        leaver.cancel()
        await world.time.settle()
        assert leaver.cancelled()
        assert not stayer.done()
        await world.time.advance(3)
        assert stayer.done()


async def test_a_restarted_engine_is_discovered_anew() -> None:
    engine = FakeEngine(metrics=page(start=100.0), sources=event_sources(0))
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        engine.answers_models("other")
        engine.answers["/metrics"] = page(start=200.0)
        await world.time.advance(5)
        (state,) = world.pool.snapshot()
        assert (list(state.models), state.process_start) == (["other"], 200.0)


async def test_discovery_is_repeated_until_the_engine_has_answered_it() -> None:
    engine = FakeEngine()
    engine.answers["/v1/models"] = 500
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        assert not world.pool.snapshot()[0].models
        engine.answers_models("m")
        await world.time.advance(3)
        assert list(world.pool.snapshot()[0].models) == ["m"]


async def test_an_answer_that_is_not_understood_changes_nothing_and_stops_nothing() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        for path, text in {
            "/v1/models": "[]",
            "/version": "no json",
            "/metrics": "\x00{{{",
            "/kv_event_sources": "{",
        }.items():
            engine.answers[path] = text
        await world.prober.discover("a:1")
        (state,) = world.pool.snapshot()
        assert (list(state.models), state.version, state.health) == (["m"], "0.32.0", Health.HEALTHY)


async def test_a_server_without_vllms_paths_is_healthy_and_serves_anything() -> None:
    engine = FakeEngine()
    for path in ("/v1/models", "/version", "/metrics", "/kv_event_sources"):
        engine.answers[path] = 404
    async with watched({A: engine}) as world:
        await world.time.advance(5)
        (state,) = world.pool.snapshot()
        assert (state.health, dict(state.models), state.metrics) == (Health.HEALTHY, {}, None)
        assert engine.calls.count("/v1/models") == 1


async def test_tasks_come_and_go_with_the_endpoints_and_none_is_left() -> None:
    async with watched({A: FakeEngine(), B: FakeEngine()}) as world:
        await world.time.advance(3)
        assert len(world.supervisor.reports()) == 4
        world.pool.set_endpoints([EndpointSpec(url=A)])
        await world.time.settle()
        assert {report.name for report in world.supervisor.reports()} == {"probe a:1", "scrape a:1"}
        await world.monitor.stop()
        assert world.supervisor.reports() == []


async def test_ranks_found_at_runtime_are_watched_through_their_one_address() -> None:
    engine = FakeEngine(metrics=page(engines=2), sources=event_sources(0, 1))
    async with watched({A: engine}) as world:
        await world.time.advance(10)
        assert list(world.health()) == ["a:1/0", "a:1/1"]
        assert len(world.supervisor.reports()) == 2
        assert engine.calls.count("/metrics") <= 14


async def test_an_endpoint_removed_while_it_is_asked_stays_removed() -> None:
    engine = FakeEngine()
    world = World({A: engine})
    engine.answers["/version"] = None
    probe = asyncio.create_task(world.prober.probe("a:1"))
    await world.time.settle()
    world.pool.set_endpoints([])
    await world.time.advance(3)
    await probe
    assert world.pool.snapshot() == ()


async def test_discovery_that_a_restart_fell_into_is_done_once_more() -> None:
    engine = FakeEngine(metrics=page(start=100.0))
    world = World({A: engine})
    await world.monitor.probe_all()
    record = world.pool.record("a:1")
    assert record is not None
    discovered = [record.discovered_at is not None]
    engine.answers["/metrics"] = page(start=200.0)
    for _ in range(2):
        await world.prober.discover("a:1")
        discovered.append(record.discovered_at is not None)
    assert discovered == [True, False, True]


async def test_what_one_engine_answers_late_is_not_taken_for_its_successors_word() -> None:
    old, new = FakeEngine(models=("old",), metrics=page(running=9)), FakeEngine(models=("new",))
    world = World({A: old, B: new})
    world.pool.set_endpoints([EndpointSpec(url=A, name="e")])
    old.answers["/version"] = None
    discovering = asyncio.create_task(world.prober.discover("e"))
    await world.time.settle()
    world.pool.set_endpoints([EndpointSpec(url=B, name="e")])
    await world.time.advance(3)
    await discovering
    (state,) = world.pool.snapshot()
    assert (dict(state.models), state.metrics) == ({}, None)


async def test_a_page_that_comes_late_is_not_taken_for_the_successors() -> None:
    world = World({A: FakeEngine(metrics=page(running=9)), B: FakeEngine()})
    world.pool.set_endpoints([EndpointSpec(url=A, name="e")])
    world.calls.delay_s = 1.0
    scraping = asyncio.create_task(world.scraper.scrape("e"))
    await world.time.settle()
    world.pool.set_endpoints([EndpointSpec(url=B, name="e")])
    await world.time.advance(2)
    await scraping
    assert world.pool.snapshot()[0].metrics is None


async def test_rounds_keep_their_pace_when_an_engine_answers_slowly() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        world.calls.delay_s = 1.5
        await world.time.advance(41)
        # Every 2 s, give or take the jitter: not every 2 s after an answer that took 1.5 s.
        assert 17 <= engine.calls.count("/health") <= 24


async def test_a_probe_that_a_busy_engine_misses_while_its_tokens_come_does_not_count() -> None:
    heard: dict[str, float] = {}
    world = World({A: FakeEngine()})
    prober = Prober(world.pool, world.calls, world.scraper, clock=world.time.clock, heard_at=heard.get)
    await prober.probe("a:1")
    world.engines[A].answers["/health"] = None
    for _ in range(5):
        probing = asyncio.create_task(prober.probe("a:1"))
        await world.time.settle()
        heard[A] = world.time.now
        await world.time.advance(2.5)
        await probing
    assert world.health() == {"a:1": Health.HEALTHY}
    for _ in range(2):
        probing = asyncio.create_task(prober.probe("a:1"))
        await world.time.advance(2.5)
        await probing
    assert world.health() == {"a:1": Health.UNHEALTHY}


async def test_an_engine_that_says_it_is_paused_or_asleep_is_out_while_it_says_so() -> None:
    world = World({A: FakeEngine(), B: FakeEngine()})
    paused, plain = world.engines[A], world.engines[B]
    paused.answers |= {"/is_sleeping": '{"is_sleeping": false}', "/is_paused": '{"is_paused": true}'}
    await world.monitor.probe_all()
    assert world.health() == {"a:1": Health.UNHEALTHY, "b:1": Health.HEALTHY}
    assert world.pool.reasons()["a:1"] == "paused"
    paused.answers["/is_paused"] = '{"is_paused": false}'
    await world.monitor.probe_all()
    assert world.health()["a:1"] is Health.HEALTHY
    paused.answers["/is_sleeping"] = '{"is_sleeping": true}'
    await world.monitor.probe_all()
    assert world.pool.reasons()["a:1"] == "asleep"
    # Who has no such path is asked once.
    assert plain.calls.count("/is_paused") == 1


async def test_another_interval_is_kept_from_the_next_round_on() -> None:
    engine = FakeEngine()
    async with watched({A: engine}) as world:
        await world.time.advance(10)
        engine.calls.clear()
        world.prober.policy = ProbePolicy(interval_s=20.0, timeout_s=2.0)
        world.scraper.policy = ScrapePolicy(interval_s=0.5, timeout_s=2.0)
        await world.time.advance(3)
        engine.calls.clear()
        await world.time.advance(10)
        assert engine.calls.count("/health") == 0
        assert 18 <= engine.calls.count("/metrics") <= 23
