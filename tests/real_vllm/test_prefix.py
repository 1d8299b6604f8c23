"""What the router predicts of an engine's prefix cache is what the engine then says it found there.

Requests go one after the other, so each is served by a quiet engine. A prediction is `x-kvrouter-matched-tokens`, the
engine's word is `cached_tokens`; both leave out the last block of a prompt that is cached to its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import httpx
import pytest

from tests.real_vllm.build import FULL
from tests.real_vllm.engines import BLOCK, Engine
from tests.real_vllm.routers import (
    EventProxy,
    all_heard,
    client_of,
    eventually,
    exact,
    healthy,
    records_of,
    router_over,
)
from tests.real_vllm.workload import CHAT, COMPLETIONS, Ask, completion, numbers, workload
from tests.support.router import RunningRouter

Note = Callable[[str], None]


class Seen(NamedTuple):
    ask: Ask
    endpoint: str
    prompt: int
    predicted: int
    cached: int
    evicted: int
    """Blocks that the engine evicted while it served this."""

    @property
    def right(self) -> bool:
        return self.predicted == self.cached

    @property
    def explained(self) -> bool:
        """The first prompts of a batch may take blocks that the last one would have found."""
        return self.ask.kind == "batch" and self.predicted - self.cached in range(self.evicted * BLOCK + 1)

    def __str__(self) -> str:
        return (
            f"{self.ask.kind} on {self.endpoint}: predicted {self.predicted}, cached {self.cached} of {self.prompt}, "
            f"{self.evicted} blocks evicted meanwhile"
        )


async def send(client: httpx.AsyncClient, ask: Ask) -> Seen:
    answer = await client.post(ask.path, json=ask.body)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    choice = said["choices"][0]
    ask.answered((choice["message"]["content"] or "") if ask.path == CHAT else choice["text"])
    usage = said["usage"]
    return Seen(
        ask,
        answer.headers["x-kvrouter-endpoint"],
        usage["prompt_tokens"],
        int(answer.headers["x-kvrouter-matched-tokens"]),
        (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0,
        0,
    )


async def send_all(router: RunningRouter, asks: Iterable[Ask]) -> list[Seen]:
    """One after the other, each when the router has heard of all that the one before did to the engines' caches."""
    seen = []
    async with client_of(router) as client, records_of(router) as records:
        await all_heard(router, records)
        for ask in asks:
            before = {name: record.evicted for name, record in records.items()}
            one = await send(client, ask)
            await all_heard(router, records)
            seen.append(one._replace(evicted=records[one.endpoint].evicted - before[one.endpoint]))
    return seen


def judge(seen: Sequence[Seen], note: Note, what: str) -> None:
    """At least 99.5 % are right or explained, and something was cached at all."""
    off = [one for one in seen if not one.right]
    wrong = [one for one in off if not one.explained]
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(one.ask.kind for one in seen).most_common())
    cached = sum(one.cached for one in seen) / sum(one.prompt for one in seen)
    note(f"{what}: {len(seen) - len(off)} of {len(seen)} predictions right, {cached:.0%} cached ({kinds})")
    for one in off:
        note(f"  {'explained' if one.explained else 'wrong'}: {one}")
    assert len(seen) - len(wrong) >= 0.995 * len(seen), "\n".join(map(str, wrong))
    assert cached > 0.1


async def test_predictions_are_the_engines_own_counts(aggregated: list[Engine], note: Note) -> None:
    async with router_over(aggregated) as router:
        await exact(router)
        seen = await send_all(router, workload(600 if FULL else 200, seed=1))
    judge(seen, note, "two engines, one with int hashes and one with bytes")
    for engine in aggregated:
        evicted = sum(one.evicted for one in seen if one.endpoint == engine.id)
        note(f"  {engine.id} evicted {evicted} blocks of {engine.spec.blocks}")
        assert evicted > 0, "a cache this large evicts nothing"


async def test_a_router_that_comes_late_learns_from_the_replay(aggregated: list[Engine], note: Note) -> None:
    async with router_over(aggregated) as router:
        await exact(router)
        asks = list(repeated(40, seed=2))
        await send_all(router, asks)
    async with router_over(aggregated) as router:
        await exact(router)
        judge(await send_all(router, asks), note, "a second router, started later")


async def test_predictions_after_a_cache_was_reset(aggregated: list[Engine], note: Note) -> None:
    async with router_over(aggregated) as router:
        await exact(router)
        await send_all(router, repeated(30, seed=3))
        for engine in aggregated:
            engine.post("/reset_prefix_cache").raise_for_status()
            # The engine says so only together with what its next step has to say.
            engine.post(COMPLETIONS, completion(numbers(77, 70))).raise_for_status()
        await eventually(lambda: blocks(router) <= 6, "the index forgot what the engines forgot")
        judge(await send_all(router, repeated(80, seed=3)), note, "after /reset_prefix_cache")


async def test_predictions_after_an_engine_came_back_empty(aggregated: list[Engine], note: Note) -> None:
    async with router_over(aggregated) as router:
        await exact(router)
        await send_all(router, repeated(30, seed=4))
        first = aggregated[0]
        first.kill()
        first.start()
        first.ready()
        following = router.app.indexing.following()[first.id]
        await eventually(
            lambda: following is not router.app.indexing.following().get(first.id) or following.counts()["restarts"],
            "the restart was seen",
        )
        await exact(router)
        await healthy(router)
        judge(await send_all(router, repeated(80, seed=4)), note, "after an engine's restart")


async def test_predictions_after_two_hundred_events_were_missed(aggregated: list[Engine], note: Note) -> None:
    engine = aggregated[0]
    async with EventProxy(engine.events_port) as live, EventProxy(engine.replay_port) as replay:
        spec = {"url": engine.url, "kv_events": {"endpoint": live.url, "replay_endpoint": replay.url}}
        async with router_over(more=[spec]) as router:
            await exact(router)
            await send_all(router, repeated(20, seed=5))
            (following,) = router.app.indexing.following().values()
            subscriber = following.subscriber
            assert subscriber is not None
            seen_before = subscriber.ingest.next_sequence or 0
            replays_before = subscriber.counters.replays
            await live.cut()
            for number in range(210):
                engine.post(COMPLETIONS, completion(numbers(1000 + number, 40), max_tokens=1)).raise_for_status()
            assert subscriber.ingest.next_sequence == seen_before
            await live.mend()
            await eventually(
                lambda: (subscriber.ingest.next_sequence or 0) >= seen_before + 200,
                "what was missed is known",
            )
            await exact(router)
            assert subscriber.counters.replays > replays_before
            assert subscriber.ingest.counters.restarts == 0
            judge(await send_all(router, repeated(60, seed=5)), note, "after 210 missed events")


@pytest.mark.full
async def test_predictions_for_each_data_parallel_rank(ranks: list[Engine], note: Note) -> None:
    async with router_over(ranks) as router:
        await eventually(lambda: len(router.app.pool.snapshot()) == 2, "both ranks found")
        await exact(router)
        asks = (ask for ask in workload(10_000, seed=6) if not ask.kind.startswith("lora"))
        seen = await send_all(router, (next(asks) for _ in range(150)))
        judge(seen, note, "two data-parallel ranks")
        assert len({one.endpoint for one in seen}) == 2


def blocks(router: RunningRouter) -> int:
    return sum(sum(tiers.values()) for tiers in router.app.indexing.stats().blocks.values())


def repeated(count: int, seed: int) -> Iterable[Ask]:
    """Chats of three turns whose turns do not hold the answers: the same for whoever is asked again."""
    for number in range(count):
        chat, turn = divmod(number, 3)
        said = [
            {"role": "user", "content": f"{seed} {chat} {numbers(seed + chat, 12 + 20 * part)}"}
            for part in range(turn + 1)
        ]
        yield Ask("chat", CHAT, {"model": "tiny", "messages": said, "max_tokens": 2, "ignore_eos": True})
