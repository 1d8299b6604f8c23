"""``python -m loadtest.many_routers``: one load over the same engines behind 1, 2, 4 and 8 routers that share a Redis.

Each request goes to a router drawn at random, as behind a balancer. It tells the prefix hit rate as the engines count
it, and how evenly requests were spread over the engines (max over mean of all routers' requests in flight, while
busy), each against one router's. ``--kill`` kills one of the routers in the middle of the load and tells how long the
others took to take over what it owned and to forget its load.

Exit code 1 when a request failed or a demand (``--demand-hits``, ``--demand-spread``) was not met.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import yaml
from rich.console import Console
from rich.table import Table

from loadtest.arguments import Parser, complain, positive, redis_url, whole, writable
from loadtest.cluster import start_child, wait_for
from loadtest.compare import cache_counts, metric
from loadtest.demo.children import Child, ChildFailed
from loadtest.ports import free_ports
from loadtest.profile import LoadProfile, ProfileError, load_profile
from loadtest.shapes import script

_SAMPLE_S = 0.1
_REQUEST_S = 120.0
_BUSY = 4
"""Spread is looked at only while that many requests an engine are in flight."""


class Many(NamedTuple):
    """What listens."""

    routers: tuple[str, ...]
    children: tuple[Child, ...]
    engines: tuple[str, ...]
    namespace: str
    """What their keys in the Redis begin with."""


class Outcome(NamedTuple):
    routers: int
    seconds: float
    requests: int
    failures: int
    hit_rate: float
    """Share of prompt tokens the engines found in their caches."""
    imbalance: float | None
    """Mean of max/mean in flight while busy; None when it never was."""
    samples: int
    taken_over_s: float | None = None
    """From the kill of a router until the others own every endpoint."""
    forgotten_s: float | None = None
    """Until they no longer count it, and with it its load."""


def redis_server(stack: ExitStack, folder: Path) -> str:
    """The address of a server started here. Raises ChildFailed when there is no binary for one."""
    from router.errors import ConfigError
    from router.workers.embedded import EmbeddedValkey

    try:
        embedded = EmbeddedValkey(folder)
        embedded.start()
    except ConfigError as error:
        raise ChildFailed(f"{error}, or give --redis") from None
    stack.callback(embedded.stop)
    return embedded.url


@contextmanager
def many(count: int, engine_count: int, simulator: dict[str, Any], redis: str | None) -> Iterator[Many]:
    """`count` routers before `engine_count` engines. Raises ChildFailed, OSError."""
    port = free_ports(engine_count + count)
    engines = tuple(f"http://127.0.0.1:{port + number}" for number in range(engine_count))
    routers = tuple(f"http://127.0.0.1:{port + engine_count + number}" for number in range(count))
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in simulator.items()]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-")))
        url = redis or redis_server(stack, folder)
        file = folder / "router.yaml"
        settings = {
            "index": {"backend": "redis"},
            "redis": {"url": url, "namespace": f"many{port}"},
            "server": {"access_log": False},
        }
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        sim = ["router", "sim", "--count", str(engine_count), "--port", str(port), *flags]
        wait_for(start_child(stack, "engines", sim, folder), [f"{engine}/health" for engine in engines])
        children = []
        for number in range(count):
            listening = str(port + engine_count + number)
            serve = ["router", "serve", *engines, "--config", str(file), "--port", listening]
            children.append(start_child(stack, f"router{number}", serve, folder))
        for child, router in zip(children, routers, strict=True):
            wait_for(child, [f"{router}/ready"])
        yield Many(routers, tuple(children), engines, f"many{port}")


class Run:
    """One load over a group of routers."""

    def __init__(self, group: Many, profile: LoadProfile, model: str) -> None:
        self._group = group
        self._profile = profile
        self._model = model
        self._rng = random.Random(profile.seed)
        self.alive = list(group.routers)
        self.requests = 0
        self.failures = 0
        self.why: Counter[str] = Counter()
        self.samples: list[dict[str, int]] = []
        self._over = False

    async def load(self) -> None:
        # Idle connections end before the routers would end them: a request must not meet a closing one.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        async with httpx.AsyncClient(timeout=_REQUEST_S, limits=limits, trust_env=False) as client:
            sampling = asyncio.create_task(self._sample(client))
            try:
                async with asyncio.TaskGroup() as users:
                    for number in range(self._profile.users):
                        users.create_task(self._user(client, number))
            finally:
                self._over = True
                await sampling

    async def _user(self, client: httpx.AsyncClient, number: int) -> None:
        await asyncio.sleep(number / self._profile.spawn_rate)
        asks = script(self._profile, number, iter(()))
        answer: str | None = None
        try:
            ask = next(asks)
            while True:
                await asyncio.sleep(ask.wait_s)
                body = {
                    "model": self._model,
                    "messages": ask.messages,
                    "max_tokens": ask.max_tokens,
                    "ignore_eos": True,
                }
                answer = await self._ask(client, body)
                ask = asks.send(answer)
        except StopIteration:
            return

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str | None:
        router = self._rng.choice(self.alive)
        self.requests += 1
        try:
            response = await client.post(f"{router}/v1/chat/completions", json=body)
            if response.status_code == 200:
                content: str = response.json()["choices"][0]["message"]["content"]
                return content
            why = f"status {response.status_code}"
        except httpx.HTTPError as error:
            why = type(error).__name__
        if router in self.alive:
            # What a killed router had under way is its balancer's to send again; nobody else may fail.
            self.failures += 1
            self.why[why] += 1
        return None

    async def _sample(self, client: httpx.AsyncClient) -> None:
        while not self._over:
            began = time.monotonic()
            pages = await asyncio.gather(*(_page(client, router) for router in self.alive))
            total: Counter[str] = Counter()
            for page in pages:
                for labels, value in metric(page, "kvrouter_inflight_requests"):
                    total[labels] += int(value)
            self.samples.append(dict(total))
            await asyncio.sleep(max(0.0, began + _SAMPLE_S - time.monotonic()))

    async def kill_one(self, after_s: float) -> tuple[float | None, float | None]:
        """Kills the router that owns most. (Seconds until taken over, until forgotten), None for never."""
        await asyncio.sleep(after_s)
        async with httpx.AsyncClient(timeout=10.0, trust_env=False) as client:
            owned = [await _value(client, router, "kvrouter_index_owned_endpoints") for router in self.alive]
            victim = owned.index(max(owned))
            self.alive.remove(self._group.routers[victim])
            os.kill(self._group.children[victim].pid, signal.SIGKILL)
            killed = time.monotonic()
            taken_over = forgotten = None
            while time.monotonic() - killed < 30.0 and (taken_over is None or forgotten is None):
                now = [await _value(client, router, "kvrouter_index_owned_endpoints") for router in self.alive]
                if taken_over is None and sum(now) >= len(self._group.engines):
                    taken_over = time.monotonic() - killed
                seen = [await _value(client, router, "kvrouter_routers") for router in self.alive]
                if forgotten is None and max(seen) <= len(self.alive):
                    forgotten = time.monotonic() - killed
                await asyncio.sleep(0.1)
        return taken_over, forgotten


async def _page(client: httpx.AsyncClient, router: str) -> str:
    try:
        return (await client.get(f"{router}/metrics")).text
    except httpx.HTTPError:
        return ""


async def _value(client: httpx.AsyncClient, router: str, name: str) -> float:
    return sum(value for _, value in metric(await _page(client, router), name))


def run(count: int, profile: LoadProfile, engine_count: int, *, kill: bool, redis: str | None) -> Outcome:
    """Raises ChildFailed, httpx.HTTPError, OSError."""
    with many(count, engine_count, dict(profile.simulator), redis) as group:
        made = Run(group, profile, "sim-model")
        began = time.monotonic()

        async def both() -> tuple[float | None, float | None]:
            killing = asyncio.create_task(made.kill_one(10.0)) if kill and count > 1 else None
            await made.load()
            return await killing if killing is not None else (None, None)

        taken_over, forgotten = asyncio.run(both())
        seconds = time.monotonic() - began
        with httpx.Client(timeout=10, trust_env=False) as client:
            looked, found = cache_counts(client, group.engines)
    busy = [spread for sample in made.samples if (spread := max_over_mean(sample)) is not None]
    if made.why:
        sys.stderr.write(f"{count} routers: failed requests: {dict(made.why)}\n")
    return Outcome(
        count,
        seconds,
        made.requests,
        made.failures,
        found / looked if looked else 0.0,
        statistics.fmean(busy) if busy else None,
        len(busy),
        taken_over,
        forgotten,
    )


def max_over_mean(sample: dict[str, int]) -> float | None:
    """How uneven one sample is (1.0 is even); None when it is not busy enough to tell."""
    total = sum(sample.values())
    return max(sample.values()) * len(sample) / total if sample and total >= _BUSY * len(sample) else None


def table(outcomes: Sequence[Outcome]) -> Table:
    first = outcomes[0]
    made = Table(title="One load, several routers")
    for column in (
        "routers",
        "requests (failed)",
        "seconds",
        "hit rate",
        "of one's",
        "max/mean",
        "of one's",
        "samples",
    ):
        made.add_column(column, justify="right")
    for each in outcomes:
        spread = "-" if each.imbalance is None else f"{each.imbalance:.2f}"
        ratio = "-" if each.imbalance is None or not first.imbalance else f"{each.imbalance / first.imbalance:.2f}"
        made.add_row(
            *(str(each.routers), f"{each.requests} ({each.failures})", f"{each.seconds:.0f}"),
            *(f"{100 * each.hit_rate:.1f} %", f"{100 * each.hit_rate / (first.hit_rate or 1):.1f} %"),
            *(spread, ratio, str(each.samples)),
        )
    return made


def unmet(outcomes: Sequence[Outcome], *, hits: float | None, spread: float | None) -> list[str]:
    """What failed or fell short of the first, a sentence each; a demand of None is none."""
    first = outcomes[0]
    complaints = [f"{each.routers} routers: {each.failures} requests failed" for each in outcomes if each.failures]
    for each in outcomes[1:]:
        if hits is not None and each.hit_rate < hits * first.hit_rate:
            complaints.append(f"{each.routers} routers: hit rate below {hits:g} of one router's")
        if spread is not None and (
            each.imbalance is None or first.imbalance is None or each.imbalance > spread * first.imbalance
        ):
            complaints.append(f"{each.routers} routers: spread worse than {spread:g} of one router's, or never busy")
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.many_routers", description=__doc__.splitlines()[0])
    parser.add_argument("--load-profile", default="multiturn", metavar="NAME|FILE")
    parser.add_argument("--routers", type=whole(1, 64), nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--engines", type=whole(1, 1024), default=8)
    parser.add_argument("--users", type=whole(1), help="instead of the profile's")
    parser.add_argument(
        "--redis", type=redis_url, metavar="URL", help="a Redis; default: an embedded Valkey for each run"
    )
    parser.add_argument("--kill", action="store_true", help="kill one router of each group 10 s into the load")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the figures there too")
    parser.add_argument("--demand-hits", type=positive, metavar="R", help="least hit rate, of one router's")
    parser.add_argument("--demand-spread", type=positive, metavar="R", help="most max/mean in flight, of one router's")
    options = parser.parse_args(arguments)
    try:
        profile = load_profile(options.load_profile)
        if options.users:
            profile = msgspec.structs.replace(profile, users=options.users)
        outcomes = [
            run(count, profile, options.engines, kill=options.kill, redis=options.redis) for count in options.routers
        ]
    except (ProfileError, ChildFailed, OSError, httpx.HTTPError) as error:
        return complain(error)
    Console(width=max(100, shutil.get_terminal_size().columns)).print(table(outcomes))
    for each in outcomes:
        if each.taken_over_s is not None or each.forgotten_s is not None:
            print(  # noqa: T201
                f"{each.routers} routers, one killed: taken over after {each.taken_over_s or -1:.1f} s, "
                f"forgotten after {each.forgotten_s or -1:.1f} s"
            )
    if options.json:
        options.json.write_bytes(msgspec.json.encode([each._asdict() for each in outcomes]))
    complaints = unmet(outcomes, hits=options.demand_hits, spread=options.demand_spread)
    for complaint in complaints:
        sys.stderr.write(f"not met: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
