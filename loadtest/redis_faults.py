"""``python -m loadtest.redis_faults``: what a Redis that fails costs the routers that share it, and when it is over.

Two routers in processes of their own over the same simulated engines, under an open load that never pauses. For each
fault: requests that failed, the 99th percentile of the answer's time before the fault and during it (from the fault
until `_AFTER_S` after the server's return), and how long after the return the shared truth is whole again: every router
is in touch, every endpoint has its owner, and the server holds as many blocks of each endpoint as the routers' memory.

The figure of a fault is the median of ``--runs`` runs. Exit code 1 when a request failed or a demand (``--demand-p99``,
``--demand-right``) was not met.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from kvindex.events import Tier
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from kvindex.redis_trouble import StoreUnavailable
from loadtest.compare import metric
from loadtest.demo.children import ChildFailed
from loadtest.many_routers import Many, many
from loadtest.redis_groups import ClusterServers, WatchedServers
from loadtest.redis_server import RedisServer

_WARM_S = 9.0
_BEFORE_S = 8.0
_FAULT_S = 3.0
_AFTER_S = 5.0
_RIGHT_S = 30.0
"""How long the shared truth may take before it counts as never right."""
_USERS = 40
_TURNS = 6
"""Then a conversation begins again, so that after a while everything has been asked and blocks rarely change."""
_ENGINES = 4
_ROUTERS = 2


class Outcome(NamedTuple):
    fault: str
    requests: int
    failures: int
    p99_before_ms: float
    p99_during_ms: float
    right_after_s: float | None
    """Seconds from the server's return until the shared truth was whole; None: not within 30 s."""


async def _killed(server: RedisServer) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(_FAULT_S)
    await asyncio.to_thread(server.start)


async def _frozen(server: RedisServer) -> None:
    server.freeze()
    await asyncio.sleep(_FAULT_S)
    server.thaw()


async def _flushed(server: RedisServer) -> None:
    await asyncio.to_thread(server.command, "FLUSHALL")


async def _replaced(server: RedisServer) -> None:
    """Nothing is on disk: what starts again is another, empty server."""
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)


async def _cut(server: RedisServer) -> None:
    """Connections end in the middle of whatever they are doing."""
    until = time.monotonic() + _FAULT_S
    while time.monotonic() < until:
        await asyncio.to_thread(server.command, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await asyncio.sleep(0.02)


async def _failed_over(servers: WatchedServers) -> None:
    await asyncio.to_thread(servers.first.stop)
    await _promoted(servers.second)


async def _cluster_failed_over(servers: ClusterServers) -> None:
    await asyncio.to_thread(servers.primaries[0].stop)
    await _promoted(servers.replica)


async def _promoted(server: RedisServer) -> None:
    """Raises TimeoutError."""
    async with asyncio.timeout(60.0):
        while not await asyncio.to_thread(_is_primary, server):  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.02)


def _is_primary(server: RedisServer) -> bool:
    try:
        return b"role:master" in server.command("INFO", "replication")
    except OSError:
        # While it changes its part it closes connections.
        return False


FAULTS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Awaitable[None]]]] = {
    "killed": (RedisServer, _killed),
    "frozen": (RedisServer, _frozen),
    "flushed": (RedisServer, _flushed),
    "replaced": (RedisServer, _replaced),
    "cut": (RedisServer, _cut),
    "sentinel": (WatchedServers, _failed_over),
    "cluster": (ClusterServers, _cluster_failed_over),
}


class Load:
    """An open load: conversations that grow, started at random times, whatever became of the last."""

    def __init__(self, group: Many, rate: float, seed: int) -> None:
        self._group = group
        self._rate = rate
        self._rng = random.Random(seed)
        self.done: list[tuple[float, float]] = []
        """(when it began, seconds it took), of the answered ones."""
        self.failures: list[str] = []
        self._over = False

    def end(self) -> None:
        self._over = True

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        async with (
            httpx.AsyncClient(timeout=60.0, limits=limits, trust_env=False) as client,
            asyncio.TaskGroup() as tasks,
        ):
            for number in itertools.count():
                if self._over:
                    return
                tasks.create_task(self._ask(client, number))
                await asyncio.sleep(self._rng.expovariate(self._rate))

    async def _ask(self, client: httpx.AsyncClient, number: int) -> None:
        user, turn = number % _USERS, number // _USERS
        text = f"user {user} of the house " * 40 + "".join(
            f"turn {each} of {user} " * 8 for each in range(turn % _TURNS)
        )
        body = {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 2}
        began = time.monotonic()
        try:
            response = await client.post(f"{self._rng.choice(self._group.routers)}/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            self.failures.append(type(error).__name__)
            return
        if response.status_code == 200:
            self.done.append((began, time.monotonic() - began))
        else:
            self.failures.append(f"status {response.status_code}")

    def p99_ms(self, begin: float, end: float) -> float:
        took = sorted(seconds for began, seconds in self.done if begin <= began < end)
        return 1000 * took[min(len(took) - 1, int(0.99 * len(took)))] if took else float("nan")


class Truth:
    """What the server holds, beside what the routers' memories hold."""

    def __init__(self, group: Many, url: str, namespace: str) -> None:
        self._group = group
        self._url = url
        self._namespace = namespace

    async def right_after(self, returned: float) -> float | None:
        """Seconds from `returned` until the shared truth was whole."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx.AsyncClient(timeout=5.0, trust_env=False))
            store = RedisStore(RedisLink(self._url, budget_s=2.0), namespace=self._namespace)
            stack.push_async_callback(store.aclose)
            while time.monotonic() < returned + _RIGHT_S:
                asked = time.monotonic()
                if await self._whole(client, store):
                    return asked - returned
                await asyncio.sleep(0.1)
        return None

    async def _whole(self, client: httpx.AsyncClient, store: RedisStore) -> bool:
        """Memory is read before and after the server: what the load changes meanwhile is no difference."""
        before = [await self._page(client, router) for router in self._group.routers]
        if any(_total(page, "kvrouter_index_stale") for page in before):
            return False
        if sum(_total(page, "kvrouter_index_owned_endpoints") for page in before) != len(self._group.engines):
            return False
        held: dict[str, int] = {}
        try:
            for endpoint in await store.endpoints():
                snapshot = await store.snapshot(endpoint)
                held[endpoint] = len(snapshot.saved.held[Tier.DEVICE][0]) if snapshot is not None else 0
        except StoreUnavailable:
            return False
        after = [await self._page(client, router) for router in self._group.routers]
        for first, last in zip(before, after, strict=True):
            low, high = _blocks(first), _blocks(last)
            if set(held) != set(low) or any(not low[name] <= held[name] <= high[name] for name in held):
                return False
        return True

    async def _page(self, client: httpx.AsyncClient, router: str) -> str:
        return (await client.get(f"{router}/metrics")).text


def _total(page: str, name: str) -> float:
    return sum(value for _, value in metric(page, name))


def _blocks(page: str) -> dict[str, int]:
    """Endpoint -> blocks in device memory, by the router's metrics."""
    found = {}
    for labels, value in metric(page, "kvrouter_index_blocks"):
        if 'tier="device"' in labels:
            found[labels.partition('endpoint="')[2].partition('"')[0]] = int(value)
    return found


async def _under_load(
    group: Many, fault: Callable[[], Awaitable[None]], truth: Truth, name: str, rate: float, seed: int
) -> Outcome:
    load = Load(group, rate, seed)
    asking = asyncio.create_task(load.run())
    try:
        await asyncio.sleep(_WARM_S)
        began = time.monotonic()
        await asyncio.sleep(_BEFORE_S)
        broken = time.monotonic()
        await fault()
        returned = time.monotonic()
        right, _ = await asyncio.gather(truth.right_after(returned), asyncio.sleep(_AFTER_S))
        end = returned + _AFTER_S
    finally:
        load.end()
        await asking
    return Outcome(
        name,
        len(load.done) + len(load.failures),
        len(load.failures),
        load.p99_ms(began, broken),
        load.p99_ms(broken, end),
        right,
    )


def run(name: str, rate: float, seed: int) -> Outcome:
    """Raises ChildFailed, OSError, RuntimeError (a server that does not start)."""
    make, fault = FAULTS[name]
    with make() as servers, many(_ROUTERS, _ENGINES, {"num_gpu_blocks": 20_000}, servers.url) as group:
        truth = Truth(group, servers.url, group.namespace)
        return asyncio.run(_under_load(group, lambda: fault(servers), truth, name, rate, seed))


def _said(outcome: Outcome) -> str:
    right = "never" if outcome.right_after_s is None else f"after {outcome.right_after_s:.1f} s"
    return (
        f"{outcome.failures} of {outcome.requests} failed, p99 {outcome.p99_before_ms:.0f} ms before and "
        f"{outcome.p99_during_ms:.0f} ms during, right again {right}"
    )


def median(outcomes: Sequence[Outcome]) -> Outcome:
    """One fault's runs as one: sums of requests, medians of times."""
    rights = sorted(float("inf") if each.right_after_s is None else each.right_after_s for each in outcomes)
    right = rights[len(rights) // 2]
    added = sorted(outcomes, key=lambda each: each.p99_during_ms - each.p99_before_ms)[len(outcomes) // 2]
    return Outcome(
        outcomes[0].fault,
        sum(each.requests for each in outcomes),
        sum(each.failures for each in outcomes),
        added.p99_before_ms,
        added.p99_during_ms,
        None if right == float("inf") else right,
    )


def table(outcomes: Sequence[Outcome], runs: int) -> Table:
    made = Table(title=f"A Redis that fails under load, {_ROUTERS} routers, median of {runs} runs")
    for column in (
        "fault",
        "requests (failed)",
        "p99 before, ms",
        "p99 during, ms",
        "more, ms",
        "right again after, s",
    ):
        made.add_column(column, justify="right")
    for each in outcomes:
        made.add_row(
            each.fault,
            f"{each.requests} ({each.failures})",
            f"{each.p99_before_ms:.0f}",
            f"{each.p99_during_ms:.0f}",
            f"{each.p99_during_ms - each.p99_before_ms:+.0f}",
            "never" if each.right_after_s is None else f"{each.right_after_s:.1f}",
        )
    return made


def unmet(outcomes: Sequence[Outcome], *, p99_ms: float | None, right_s: float | None) -> Iterator[str]:
    """What failed or fell short, a sentence each; a demand of None is none."""
    for each in outcomes:
        if each.failures:
            yield f"{each.fault}: {each.failures} requests failed"
        if p99_ms is not None and not each.p99_during_ms - each.p99_before_ms <= p99_ms:
            yield f"{each.fault}: the 99th percentile rose by more than {p99_ms:g} ms"
        if right_s is not None and (each.right_after_s is None or each.right_after_s > right_s):
            yield f"{each.fault}: the shared truth was not whole within {right_s:g} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.redis_faults", description=__doc__.splitlines()[0])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--runs", type=int, choices=range(1, 100), default=3, metavar="N")
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of each run there")
    parser.add_argument("--demand-p99", type=float, metavar="MS", help="most that the 99th percentile may rise")
    parser.add_argument("--demand-right", type=float, metavar="S", help="most until the shared truth is whole again")
    options = parser.parse_args(arguments)
    made: dict[str, list[Outcome]] = {}
    try:
        for number, name in itertools.product(range(options.runs), options.faults):
            sys.stderr.write(f"run {number + 1} of {options.runs}: {name}\n")
            outcome = run(name, options.rate, number)
            made.setdefault(name, []).append(outcome)
            sys.stderr.write(f"  {_said(outcome)}\n")
    except (ChildFailed, OSError, RuntimeError, httpx.HTTPError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    outcomes = [median(runs) for runs in made.values()]
    Console(width=max(100, shutil.get_terminal_size().columns)).print(table(outcomes, options.runs))
    if options.json:
        options.json.write_bytes(msgspec.json.encode([each._asdict() for runs in made.values() for each in runs]))
    complaints = list(unmet(outcomes, p99_ms=options.demand_p99, right_s=options.demand_right))
    for complaint in complaints:
        sys.stderr.write(f"not met: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
