"""``python -m loadtest.overload``: three times what the engines can do, from three tenants in two priorities.

Behind 1 and 2 routers: what the engines can do at most (requests without end, so many at a time), then the high
priority's time to first token at 80 % of it, then both again at 300 %. It tells

- the high priority's p90 TTFT under overload over that at 80 %,
- the ordinary requests' served tokens by tenant against the tenants' weights,
- tokens of completed requests against what the engines can do,
- how long a refused request took.

Exit code 1 when a bound is broken. Each phase is open loop: requests come at random times, whatever becomes of them.
"""

from __future__ import annotations

import asyncio
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from loadtest.arguments import Parser, complain, whole
from loadtest.cluster import start_child, wait_for
from loadtest.demo.children import Child, ChildFailed
from loadtest.many_routers import redis_server
from loadtest.overload_client import Address, Call, Kind, call
from loadtest.ports import free_ports

MODEL = "sim-model"
ENGINES, SEQUENCES = 2, 24
ENGINE = {
    "prefill_tokens_per_s": 8000,
    "attention_s": 1.0e-9,
    "step_s": 0.05,
    "per_seq_s": 2.0e-4,
    "per_kv_token_s": 1.0e-8,
    "kv_tokens": 200_000,
    "chunk": 2048,
    "max_seqs": SEQUENCES,
}
WEIGHTS = {"bronze": 1.0, "silver": 2.0, "gold": 3.0}
KINDS = {
    "bronze": Kind("bronze", None, 120, 24),
    "silver": Kind("silver", None, 60, 32),
    "gold": Kind("gold", None, 200, 40),
}
HIGH = "interactive"
HIGH_SHARE = 0.25
"""Of what the engines can do; the rest of the load is ordinary, the same number of requests from each tenant."""
CONFIG = {
    "server": {"access_log": False, "trusted_peers": ["127.0.0.1"]},
    "flow_control": {
        "max_requests_per_endpoint": SEQUENCES,
        "class_max_requests": 90,
        "max_requests": 120,
        "objectives": [{"name": HIGH, "priority": 10}],
        "tenant_weights": WEIGHTS,
    },
}


class Bounds(NamedTuple):
    ttft: float = 1.3
    share: float = 0.10
    goodput: float = 0.90
    refusal_s: float = 0.020


class Outcome(NamedTuple):
    routers: int
    capacity: float
    """Tokens a second."""
    ttft_80_s: float
    ttft_300_s: float
    shares: dict[str, float]
    """Tenant -> share of the ordinary requests' tokens."""
    goodput: float
    """Tokens a second."""
    refusal_s: float
    """Median."""
    refused: int
    requests: int
    statuses: dict[int, int]
    without_retry_after: int

    @property
    def ttft_ratio(self) -> float:
        return self.ttft_300_s / self.ttft_80_s if self.ttft_80_s else math.inf

    @property
    def worst_share(self) -> float:
        """Largest relative distance of a tenant's share from its weight's."""
        whole = sum(WEIGHTS.values())
        return max(abs(self.shares.get(name, 0.0) / (weight / whole) - 1) for name, weight in WEIGHTS.items())


@contextmanager
def group(count: int) -> Iterator[list[Address]]:
    """`count` routers before the engines, sharing through a Redis if there are several. Raises ChildFailed, OSError."""
    port = free_ports(ENGINES + count)
    engines = [f"http://127.0.0.1:{port + number}" for number in range(ENGINES)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-")))
        profile, file = folder / "engine.yaml", folder / "router.yaml"
        profile.write_text(yaml.safe_dump({"overload": ENGINE}), encoding="utf-8")
        config: dict[str, object] = dict(CONFIG)
        if count > 1:
            config["index"] = {"backend": "redis"}
            config["redis"] = {"url": redis_server(stack, folder), "namespace": f"overload{port}"}
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        sim = ["router", "sim", "--count", str(ENGINES), "--port", str(port), f"--profile={profile}"]
        wait_for(start_child(stack, "engines", sim, folder), [f"{engine}/health" for engine in engines])
        children: list[tuple[Child, int]] = []
        for number in range(count):
            listening = port + ENGINES + number
            serve = ["router", "serve", *engines, "--config", str(file), "--port", str(listening)]
            children.append((start_child(stack, f"router{number}", serve, folder), listening))
        for child, listening in children:
            wait_for(child, [f"http://127.0.0.1:{listening}/ready"])
        yield [Address("127.0.0.1", listening) for _, listening in children]


class Load:
    """Requests to a group of routers, each to one drawn at random, as behind a balancer."""

    def __init__(self, routers: Sequence[Address], seed: int) -> None:
        self._routers = routers
        self._rng = random.Random(seed)
        self._number = self._rng.randrange(1 << 40)

    async def _one(self, kind: Kind) -> Call:
        self._number += 1
        return await call(self._rng.choice(self._routers), MODEL, kind, self._number)

    async def closed(self, users: int, seconds: float) -> list[Call]:
        """`users` requests at a time, of all tenants in turn."""
        until = time.monotonic() + seconds
        calls: list[Call] = []

        async def user(number: int) -> None:
            kinds = list(KINDS.values())
            while time.monotonic() < until:
                calls.append(await self._one(kinds[number % len(kinds)]))
                number += 1

        await asyncio.gather(*(user(number) for number in range(users)))
        return calls

    async def open(self, high_per_s: float, ordinary_per_s: float, seconds: float) -> list[Call]:
        """Requests at random times; all that were sent, when the last has ended."""
        tasks: list[asyncio.Task[Call]] = []
        now = time.monotonic()
        until, rate, tenants = now + seconds, high_per_s + ordinary_per_s, list(KINDS)
        while now < until:
            now += self._rng.expovariate(rate)
            await asyncio.sleep(max(now - time.monotonic(), 0.0))
            kind = KINDS[self._rng.choice(tenants)]
            if self._rng.random() * rate < high_per_s:
                kind = kind._replace(objective=HIGH)
            tasks.append(asyncio.create_task(self._one(kind)))
        return list(await asyncio.gather(*tasks))


async def measure(routers: Sequence[Address], seconds: float) -> Outcome:
    """Raises OSError when a router breaks off."""
    load = Load(routers, seed=1)
    started = time.monotonic()
    full = await load.closed(ENGINES * SEQUENCES + 8, seconds / 3)
    # The first and the last answers' time is left out: engines fill and empty then.
    capacity = _rate(full, started + seconds / 9, started + seconds / 3)
    per_request = statistics.fmean(each.tokens for each in full)
    rate = capacity / per_request
    calm = await load.open(HIGH_SHARE * rate, (0.8 - HIGH_SHARE) * rate, seconds / 2)
    began = time.monotonic()
    calls = await load.open(HIGH_SHARE * rate, (3.0 - HIGH_SHARE) * rate, seconds)
    settled, end = began + seconds / 4, began + seconds
    served = [each for each in calls if each.status == 200]
    refused = [each for each in calls if each.status == 429]
    ordinary: Counter[str] = Counter()
    for each in served:
        if each.kind.objective is None:
            ordinary[each.kind.tenant] += _within(each, settled, end)
    whole = sum(ordinary.values())
    return Outcome(
        routers=len(routers),
        capacity=capacity,
        ttft_80_s=_p90(calm),
        ttft_300_s=_p90([each for each in calls if each.sent_at >= settled]),
        shares={name: tokens / whole for name, tokens in ordinary.items()} if whole else {},
        goodput=_rate(served, settled, end),
        refusal_s=statistics.median(each.whole_s for each in refused) if refused else math.inf,
        refused=len(refused),
        requests=len(calls),
        statuses=dict(Counter(each.status for each in calls)),
        without_retry_after=sum(not each.retry_after for each in refused),
    )


def _within(each: Call, begin: float, end: float) -> int:
    """Its tokens, in proportion to the part of its answering that lies between."""
    first = each.sent_at + (each.first_token_s or 0.0)
    last = each.sent_at + each.whole_s
    part = (min(last, end) - max(first, begin)) / max(last - first, 1e-6)
    return round(each.tokens * min(max(part, 0.0), 1.0))


def _rate(calls: Sequence[Call], begin: float, end: float) -> float:
    return sum(_within(each, begin, end) for each in calls if each.status == 200) / (end - begin)


def _p90(calls: Sequence[Call]) -> float:
    """Of the high priority; one that was refused counts as never answered."""
    times = [
        math.inf if each.first_token_s is None else each.first_token_s
        for each in calls
        if each.kind.objective is not None
    ]
    return statistics.quantiles(times, n=10)[-1] if len(times) > 1 else math.inf


def unmet(outcome: Outcome, bounds: Bounds) -> list[str]:
    """What was not kept, one sentence each."""
    who = f"{outcome.routers} router{'s' if outcome.routers > 1 else ''}"
    share = bounds.share if outcome.routers == 1 else max(bounds.share, 0.15)
    complaints = []
    if outcome.ttft_ratio > bounds.ttft:
        complaints.append(f"{who}: high priority's p90 TTFT is {outcome.ttft_ratio:.2f} of that at 80 % load")
    if outcome.worst_share > share:
        complaints.append(f"{who}: a tenant's share is {outcome.worst_share:.1%} from its weight's")
    if outcome.goodput < bounds.goodput * outcome.capacity:
        complaints.append(f"{who}: goodput is {outcome.goodput / outcome.capacity:.1%} of capacity")
    if outcome.refusal_s > bounds.refusal_s:
        complaints.append(f"{who}: a refusal takes {outcome.refusal_s * 1000:.1f} ms")
    if set(outcome.statuses) - {200, 429}:
        complaints.append(f"{who}: answers with status {sorted(set(outcome.statuses) - {200, 429})}")
    if outcome.without_retry_after:
        complaints.append(f"{who}: {outcome.without_retry_after} refusals without Retry-After")
    return complaints


def table(outcomes: Sequence[Outcome]) -> Table:
    shown = Table(title="three times what the engines can do")
    shown.add_column("")
    for each in outcomes:
        shown.add_column(f"{each.routers} router{'s' if each.routers > 1 else ''}", justify="right")
    rows: dict[str, Callable[[Outcome], str]] = {
        "capacity, tokens/s": lambda each: f"{each.capacity:.0f}",
        "goodput, of capacity": lambda each: f"{each.goodput / each.capacity:.1%}",
        "high priority p90 TTFT at 80 %": lambda each: f"{each.ttft_80_s * 1000:.0f} ms",
        "high priority p90 TTFT at 300 %": lambda each: f"{each.ttft_300_s * 1000:.0f} ms ({each.ttft_ratio:.2f}x)",
        "tenants' shares": lambda each: ", ".join(f"{name} {each.shares.get(name, 0.0):.1%}" for name in WEIGHTS),
        "by weight": lambda _: ", ".join(
            f"{name} {weight / sum(WEIGHTS.values()):.1%}" for name, weight in WEIGHTS.items()
        ),
        "refusal, median": lambda each: f"{each.refusal_s * 1000:.1f} ms",
        "refused": lambda each: f"{each.refused} of {each.requests}",
    }
    for name, show in rows.items():
        shown.add_row(name, *(show(each) for each in outcomes))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.overload", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--routers", type=whole(1, 16), nargs="+", default=[1, 2], metavar="N")
    parser.add_argument(
        "--seconds", type=whole(6, 600), default=24, help="of overload; the phases before take 5/6 of it"
    )
    options = parser.parse_args(arguments)
    outcomes = []
    try:
        for count in options.routers:
            with group(count) as routers:
                outcomes.append(asyncio.run(measure(routers, options.seconds)))
    except (ChildFailed, OSError, EOFError) as error:
        return complain(error)
    Console(width=max(110, shutil.get_terminal_size().columns)).print(table(outcomes))
    complaints = [complaint for each in outcomes for complaint in unmet(each, Bounds())]
    for complaint in complaints:
        sys.stderr.write(f"not met: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
