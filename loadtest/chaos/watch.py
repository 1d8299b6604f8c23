"""What must hold besides the answers: memory that stays flat, and counts that come back to zero."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import httpx

from loadtest.chaos.cast import Actor, Cast

_SAMPLE_S = 2.0
_WARM_S = 20.0
"""A process that has just started grows into its work."""
_LEAST_S = 30.0
"""Of a process's life, after the warm-up, that says something of its slope."""


class Sample(NamedTuple):
    at: float
    resident: int


class Memory:
    """Samples of every router process."""

    def __init__(self, routers: Sequence[Actor]) -> None:
        self._routers = routers
        self.lives: dict[str, list[Sample]] = {}

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            for router in self._routers:
                resident = router.resident_bytes()
                if resident is not None:
                    life = self.lives.setdefault(f"{router.name}-{router.starts}", [])
                    life.append(Sample(time.monotonic(), resident))
            await asyncio.sleep(_SAMPLE_S)


def grown(life: Sequence[Sample]) -> tuple[float, float] | None:
    """(Seconds, bytes by which the later half is above the earlier) after the warm-up; None: too short a life. PURE."""
    settled = [sample for sample in life if sample.at - life[0].at >= _WARM_S]
    if len(settled) < 4 or settled[-1].at - settled[0].at < _LEAST_S:
        return None
    half = len(settled) // 2
    early, late = settled[:half], settled[half:]
    return settled[-1].at - settled[0].at, _median(late) - _median(early)


def _median(samples: Sequence[Sample]) -> float:
    return float(sorted(sample.resident for sample in samples)[len(samples) // 2])


async def unsettled(cast: Cast, client: httpx.AsyncClient, within_s: float) -> list[str]:
    """What is still in flight anywhere, `within_s` after the last client had its answer."""
    deadline = time.monotonic() + within_s
    while left := [*await _routers(cast, client), *await _engines(cast, client)]:
        if time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)
    return []


async def continued(cast: Cast, client: httpx.AsyncClient) -> int:
    """Streams that the routers which live now have let another engine go on with."""
    pages = [(await client.get(f"{router.url}/metrics")).text for router in cast.routers]
    found = [re.findall(r"^kvrouter_continuations_total\{.*\} (\S+)", page, re.M) for page in pages]
    return sum(int(float(value)) for values in found for value in values)


async def _routers(cast: Cast, client: httpx.AsyncClient) -> list[str]:
    left = []
    for router in cast.routers:
        shown = (await client.get(f"{router.url}/debug/endpoints")).json()
        left += [
            f"{router.name} has {each['inflight']} on {each['id']}"
            for each in (shown if isinstance(shown, list) else shown["endpoints"])
            if any(each["inflight"].values())
        ]
        active = re.search(r"^kvrouter_active_requests (\S+)", (await client.get(f"{router.url}/metrics")).text, re.M)
        if active is None or float(active[1]):
            left.append(f"{router.name} has {active[1] if active else 'no count of'} exchanges under way")
    return left


async def _engines(cast: Cast, client: httpx.AsyncClient) -> list[str]:
    left = []
    for engine in cast.engines:
        page = (await client.get(f"{engine.url}/metrics")).text
        for name in ("running", "waiting"):
            found = re.search(rf"^vllm:num_requests_{name}\{{.*?\}} (\S+)", page, re.M)
            if found is None or float(found[1]):
                left.append(f"{engine.name} has {found[1] if found else 'no count of'} {name} requests")
    return left
