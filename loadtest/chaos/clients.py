"""The clients of a chaos run: each asks, judges the answer, thinks, asks again. If refused it tries another router."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping

import msgspec

from loadtest.chaos.cast import MODEL, Cast
from loadtest.chaos.client import Answer, Outcome, ask, judge

_REQUEST_S = 90.0
_KEPT = 40
_WORDS = [
    "river",
    "stone",
    "market",
    "engine",
    "quiet",
    "harbour",
    "signal",
    "winter",
    "garden",
    "copper",
    "lantern",
    "meadow",
]


class Clients:
    def __init__(
        self, cast: Cast, hurt: Mapping[str, str], rng: random.Random, *, think_s: tuple[float, float]
    ) -> None:
        """`hurt`: what is the matter with whom at the moment; noted beside what goes wrong."""
        self._cast = cast
        self._hurt = hurt
        self._rng = rng
        self._think_s = think_s
        self.outcomes: Counter[str] = Counter()
        self.turned_away = 0
        self.under_faults: Counter[tuple[str, str]] = Counter()
        """(Fault, outcome) of requests that ended while it was on."""
        self.wrong: list[str] = []
        self.longest_s = 0.0
        self._over = asyncio.Event()

    @property
    def requests(self) -> int:
        return self.outcomes.total()

    def stop(self) -> None:
        """No new requests; those under way run to their end."""
        self._over.set()

    async def run(self, count: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._client())

    async def _client(self) -> None:
        while not await self._thought():
            stream, tokens = self._rng.random() < 0.7, self._rng.randint(8, 32)
            began = time.monotonic()
            answer, router = await self._served(self._body(stream, tokens))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            outcome = judge(answer, stream=stream, tokens=tokens)
            self._note(outcome, answer, router, began)

    async def _thought(self) -> bool:
        """Whether the run was over before the thinking was."""
        try:
            await asyncio.wait_for(self._over.wait(), self._rng.uniform(*self._think_s))
        except TimeoutError:
            return False
        return True

    async def _served(self, body: bytes) -> tuple[Answer, str]:
        routers = self._rng.sample(self._cast.routers, len(self._cast.routers))
        answer = Answer(connected=False)
        for turn in range(20):
            router = routers[turn % len(routers)]
            answer = await ask(router.port, body, _REQUEST_S)
            if not (answer.turned_away and router.name in self._hurt):
                return answer, router.name
            self.turned_away += 1
            await asyncio.sleep(0.05 * (turn // len(routers)))
        return answer, "every router"

    def _note(self, outcome: Outcome, answer: Answer, router: str, began: float) -> None:
        self.outcomes[outcome] += 1
        for fault in {*self._hurt.values()}:
            self.under_faults[fault, outcome] += 1
        if outcome in (Outcome.LOST, Outcome.HIDDEN) and len(self.wrong) < _KEPT:
            shown = answer.body[:200] if answer.status != 200 else answer.body[-200:]
            self.wrong.append(
                f"{outcome} after {time.monotonic() - began:.1f} s by {router}: status {answer.status} {answer.error} "
                f"{shown!r}; then {dict(self._hurt)}"
            )

    def _body(self, stream: bool, tokens: int) -> bytes:
        shared = f"topic {self._rng.randrange(40)} " + " ".join(_WORDS * 6)
        text = f"{shared} {self._rng.random()} " + " ".join(self._rng.choices(_WORDS, k=20))
        body: dict[str, object] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)
