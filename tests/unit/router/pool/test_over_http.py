"""The pool against simulated engines over real HTTP, with httpx making the control calls and real time passing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from router.core import Endpoint, Health
from router.observability.supervisor import Supervisor
from router.pool.calls import CallError
from router.pool.health import HealthPolicy
from router.pool.monitor import Monitor
from router.pool.pool import Pool
from router.pool.prober import ProbePolicy, Prober
from router.pool.scraper import ScrapePolicy, Scraper
from router.pool.spec import EndpointSpec
from tests.support.pool import Recorder
from tests.support.simulator import engines


class HttpxCalls:
    """`ControlCalls` in a few lines. A call that is cancelled is left to finish by itself: httpx's connect loses its
    socket when it is cancelled in the loop turn in which the connection comes to stand."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._calls: set[asyncio.Task[str]] = set()

    async def get_text(self, endpoint: Endpoint, path: str, *, timeout_s: float) -> str:
        call = asyncio.create_task(self._get_text(endpoint, path, timeout_s))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return await asyncio.shield(call)

    async def finish(self) -> None:
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _get_text(self, endpoint: Endpoint, path: str, timeout_s: float) -> str:
        headers = {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
        try:
            response = await self._client.get(endpoint.url + path, headers=headers, timeout=timeout_s)
        except httpx.TimeoutException:
            raise CallError("timeout") from None
        except httpx.HTTPError:
            raise CallError("refused") from None
        if not response.is_success:
            raise CallError(f"status {response.status_code}", status=response.status_code)
        return response.text


class Watched:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.told = Recorder()
        pool.add_observer(self.told)

    async def until(self, true: Callable[[Pool], bool]) -> None:
        async with asyncio.timeout(30):
            while not true(self.pool):
                await asyncio.sleep(0.02)


def pool_over(*urls: str, api_key: str | None = None) -> Pool:
    pool = Pool(HealthPolicy(probes_up=1, probes_down=2))
    pool.set_endpoints([EndpointSpec(url=url, api_key=api_key) for url in urls])
    return pool


@asynccontextmanager
async def watched(pool: Pool) -> AsyncIterator[Watched]:
    supervisor = Supervisor(clock=time.monotonic)
    async with httpx.AsyncClient(trust_env=False) as client:
        calls = HttpxCalls(client)
        scraper = Scraper(pool, calls, clock=time.monotonic, policy=ScrapePolicy(interval_s=0.1, timeout_s=5))
        prober = Prober(pool, calls, scraper, clock=time.monotonic, policy=ProbePolicy(interval_s=0.1, timeout_s=5))
        monitor = Monitor(pool, prober, scraper, supervisor, clock=time.monotonic)
        monitor.start()
        try:
            yield Watched(pool)
        finally:
            await monitor.stop()
            await supervisor.aclose()
            await calls.finish()


def healthy(number: int) -> Callable[[Pool], bool]:
    return lambda pool: [state.health for state in pool.snapshot()] == [Health.HEALTHY] * number


async def test_an_engine_is_known_with_its_models_blocks_load_and_event_source() -> None:
    config = {"aliases": ("alias",), "loras": ("adapter",), "num_gpu_blocks": 500, "api_key": "k"}
    async with engines(1, **config) as (engine,), watched(pool_over(engine.url, api_key="k")) as world:
        await world.until(lambda pool: pool.snapshot()[0].metrics is not None and bool(pool.snapshot()[0].models))
        (state,) = world.pool.snapshot()
        assert list(state.models) == ["sim-model", "alias", "adapter"]
        assert state.models["adapter"].parent == "sim-model"
        assert (state.block_size, state.num_blocks, state.version) == (16, 500, "0.32.0")
        assert state.process_start is not None
        live, _ = engine.event_ports[0]
        assert (f"source tcp://127.0.0.1:{live}", state.endpoint.id) in world.told.told


async def test_an_engine_that_goes_is_unhealthy_and_its_successor_on_the_same_port_is_a_restart() -> None:
    # Nobody connects while an engine closes: a connection that is accepted in that moment would be left open.
    async with engines(1) as (engine,):
        pool, port = pool_over(engine.url), engine.port
        async with watched(pool) as world:
            await world.until(healthy(1))
            await world.until(lambda pool: pool.snapshot()[0].process_start is not None)
    first_start = pool.snapshot()[0].process_start
    async with watched(pool) as world:
        await world.until(lambda pool: pool.snapshot()[0].health is Health.UNHEALTHY)
    async with engines(1, port=port), watched(pool) as world:
        await world.until(healthy(1))
        await world.until(lambda pool: pool.snapshot()[0].process_start != first_start)
        assert ("restarted", f"127.0.0.1:{port}") in world.told.told


async def test_the_ranks_of_an_engine_become_endpoints_with_their_own_event_sources() -> None:
    async with engines(1, dp_size=2) as (engine,), watched(pool_over(engine.url)) as world:
        await world.until(healthy(2))
        await world.until(lambda pool: all(state.models for state in pool.snapshot()))
        assert [state.endpoint.rank for state in world.pool.snapshot()] == [0, 1]
        for rank, (live, _) in enumerate(engine.event_ports):
            assert (f"source tcp://127.0.0.1:{live}", f"127.0.0.1:{engine.port}/{rank}") in world.told.told


async def test_many_engines_and_one_dead_address() -> None:
    async with engines(7) as running:
        await running[0].kill()
        async with watched(pool_over(*(engine.url for engine in running))) as world:
            wanted = [Health.UNHEALTHY] + [Health.HEALTHY] * 6
            await world.until(lambda pool: [state.health for state in pool.snapshot()] == wanted)
