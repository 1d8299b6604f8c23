"""The gate under a director: who waits, who goes when there is room, and how waiting ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from router.core import Caller, Health, InferenceRequest, Role
from router.errors import NoEndpoint, Overloaded, ShuttingDown
from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.objectives import Objective, Objectives
from router.flowcontrol.policy import FlowPolicy
from router.flowcontrol.saturation import ConcurrencyDetector, Unlimited, Watch
from router.observability.events import Outcome
from router.ports import UpstreamRefused
from tests.support.journey import FakeReply, FakeResponse, Sent, World, endpoint, prefilled, request, stream
from tests.support.virtual_time import in_virtual_time

P, D = Role.PREFILL, Role.DECODE


class Engine:
    """Answers each request when it is told to, in the order they came."""

    def __init__(self, answer: Callable[[], FakeResponse] = lambda: stream("x")) -> None:
        self._made = answer
        self.began: list[Sent] = []
        self._open: list[asyncio.Future[None]] = []

    def __call__(self, sent: Sent) -> Awaitable[FakeResponse]:
        self.began.append(sent)
        self._open.append(asyncio.get_running_loop().create_future())
        return self._answer(self._open[-1])

    async def _answer(self, told: asyncio.Future[None]) -> FakeResponse:
        await told
        return self._made()

    def finish(self, number: int = 0) -> None:
        self._open.pop(number).set_result(None)

    @property
    def models(self) -> list[str]:
        return [sent.json["user"] for sent in self.began]


class Flow:
    def __init__(self) -> None:
        self.waited: list[tuple[int, str]] = []
        self.refused: list[tuple[int, str]] = []

    def on_waited(self, priority: int, seconds: float, fate: str) -> None:
        self.waited.append((priority, fate))

    def on_refused(self, priority: int, reason: str) -> None:
        self.refused.append((priority, reason))


OBJECTIVES = {
    "high": Objective(priority=5),
    "shed": Objective(priority=-1),
    "brief": Objective(max_wait_s=0.03),
    "patient": Objective(max_wait_s=300.0),
}


def world(engines: Mapping[str, Any], states: Any = None, *, each: int = 1, room: int = 10, **more: Any) -> World:
    """Every endpoint takes `each` requests; `room` may wait."""
    size = Limits(room, 1_000_000)
    more.setdefault("limits", QueueLimits(total=size, each_class=size))
    return World(
        states or [endpoint(name) for name in engines],
        engines,
        detector=ConcurrencyDetector(Watch(), queue_depth=1, max_requests=each),
        objectives=Objectives(OBJECTIVES, max_wait_s=30.0),
        turns=Turns(quantum=100),
        **more,
    )


def ask(name: str, caller: Caller | None = None) -> InferenceRequest:
    asked = request({"model": "m", "stream": True, "user": name, "messages": [{"role": "user", "content": "hi"}]})
    return msgspec.structs.replace(asked, caller=caller or Caller())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def serve(world: World, name: str, caller: Caller | None = None) -> asyncio.Task[FakeReply]:
    return asyncio.create_task(world.serve(ask(name, caller)))


def idle(world: World) -> bool:
    waits = world.gate.describe()
    return not world.inflight.snapshot() and not world.gate.held() and not waits["requests"] and not waits["bytes"]


async def test_a_request_waits_while_nobody_has_room_and_goes_when_one_ends() -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine}, flow=flow)
    first, second = serve(w, "1"), serve(w, "2")
    await settle()
    assert engine.models == ["1"]
    assert w.gate.waiting() == {0: (1, len(ask("2").body))}
    engine.finish()
    assert (await first).status == 200
    await settle()
    assert engine.models == ["1", "2"]
    engine.finish()
    assert (await second).status == 200
    assert idle(w)
    assert flow.waited == [(0, "dispatched")]
    assert w.recorder.ended[1].queue_s is not None


async def test_with_room_somewhere_nobody_waits() -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine, "b": engine}, each=2, flow=flow)
    tasks = [serve(w, str(number)) for number in range(4)]
    await settle()
    assert len(engine.began) == 4
    assert flow.waited == []
    for _ in tasks:
        engine.finish()
    await asyncio.gather(*tasks)


async def test_a_higher_priority_goes_first_and_equals_as_they_came() -> None:
    engine = Engine()
    w = world({"a": engine})
    callers = [None, None, Caller(objective="high"), Caller(priority=2), Caller(objective="shed"), None]
    tasks = [serve(w, str(number), caller) for number, caller in enumerate(callers)]
    await settle()
    for _ in tasks:
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert engine.models == ["0", "2", "3", "1", "5", "4"]
    assert idle(w)


async def test_lower_priorities_leave_room_for_a_higher_one_that_sends_requests() -> None:
    engine = Engine()
    w = world({"a": engine}, each=2, holdback=1)
    tasks = [serve(w, str(number)) for number in range(2)]
    await settle()
    assert len(engine.began) == 2, "nobody of higher priority is known"
    tasks += [serve(w, "high", Caller(objective="high")), serve(w, "2")]
    await settle()
    engine.finish()
    await settle()
    engine.finish()
    await settle()
    assert engine.models == ["0", "1", "high"]
    tasks.append(serve(w, "high again", Caller(objective="high")))
    await settle()
    assert engine.models == ["0", "1", "high", "high again"]
    for _ in range(3):
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert engine.models[-1] == "2"
    assert idle(w)


@pytest.mark.parametrize(("each", "holdback"), [(1, 1), (3, 5)])
async def test_nothing_is_kept_for_a_higher_priority_of_an_endpoint_that_is_idle(each: int, holdback: int) -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine}, each=each, holdback=holdback, flow=flow)
    for number in range(3):
        for caller in (Caller(objective="high"), None):
            served = serve(w, str(number), caller)
            await settle()
            engine.finish()
            assert (await served).status == 200
    assert flow.waited == []
    tasks = [serve(w, "high", Caller(objective="high")), serve(w, "low"), serve(w, "low")]
    await settle()
    assert w.gate.queued == 2
    for _ in tasks:
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert idle(w)


def test_who_waits_goes_when_the_higher_priority_has_sent_nothing_for_a_minute() -> None:
    async def main() -> None:
        engine, clock = Engine(), asyncio.get_running_loop().time
        w = world({"a": engine}, each=2, holdback=1)
        tasks = [serve(w, "high", Caller(objective="high")), serve(w, "low", Caller(objective="patient"))]
        await settle()
        await asyncio.sleep(59.0)
        assert engine.models == ["high"]
        while len(engine.began) < 2 and clock() < 61.0:
            await asyncio.sleep(0.02)
        assert engine.models == ["high", "low"]
        for _ in tasks:
            engine.finish()
        await asyncio.gather(*tasks)
        assert idle(w)

    in_virtual_time(main())


async def test_who_waited_in_vain_for_room_that_was_kept_is_not_told_that_all_are_busy() -> None:
    engine = Engine()
    w = world({"a": engine}, each=2, holdback=1)
    first = serve(w, "high", Caller(objective="high"))
    await settle()
    with pytest.raises(Overloaded, match="kept for requests that go first: after"):
        await w.serve(ask("low", Caller(objective="brief")))
    second = serve(w, "high", Caller(objective="high"))
    await settle()
    with pytest.raises(Overloaded, match="All endpoints are busy: after"):
        await w.serve(ask("low", Caller(objective="brief")))
    for _ in range(2):
        engine.finish()
    await asyncio.gather(first, second)


async def test_tenants_take_turns_however_many_requests_one_of_them_has() -> None:
    engine = Engine()
    w = world({"a": engine})
    tasks = [serve(w, "0")]
    tasks += [serve(w, "many", Caller("many")) for _ in range(6)] + [serve(w, "few", Caller("few")) for _ in range(2)]
    await settle()
    for _ in tasks:
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert engine.models[1:5].count("few") == 2


async def test_past_the_limit_a_request_is_refused_at_once_and_told_when_to_come_again() -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine}, room=2, flow=flow)
    tasks = [serve(w, str(number)) for number in range(3)]
    await settle()
    with pytest.raises(Overloaded) as refused:
        await w.serve(ask("4"))
    assert refused.value.status == 429
    assert refused.value.retry_after_s == 30
    assert w.recorder.ended[0].outcome is Outcome.REFUSED
    assert flow.refused == [(0, "full")]
    high = serve(w, "high", Caller(objective="high"))
    with pytest.raises(Overloaded, match="make room"):
        await tasks[2]
    assert flow.refused[-1] == (0, "evicted")
    for _ in range(3):
        engine.finish()
        await settle()
    await asyncio.gather(tasks[0], tasks[1], high)
    assert engine.models == ["0", "high", "1"]
    assert idle(w)


async def test_a_request_that_waited_too_long_is_refused_and_is_503_when_nobody_is_left() -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine}, flow=flow)
    running = serve(w, "1")
    await settle()
    with pytest.raises(Overloaded, match="not served in time") as late:
        await w.serve(ask("2", Caller(objective="brief")))
    assert late.value.retry_after_s is not None
    assert flow.refused == [(0, "expired")]
    third = serve(w, "3", Caller(objective="brief"))
    await settle()
    w.pool.states = [endpoint("a", health=Health.UNHEALTHY)]
    with pytest.raises(NoEndpoint):
        await third
    engine.finish()
    await running
    assert idle(w)


async def test_who_waits_goes_when_an_endpoint_returns_or_another_routers_load_ends() -> None:
    engine = Engine()
    w = world({"a": engine, "b": engine}, [endpoint("a"), endpoint("b", health=Health.UNHEALTHY)])
    tasks = [serve(w, str(number)) for number in range(3)]
    await settle()
    assert len(engine.began) == 1
    w.others = {"b": (1, 0, 0)}
    w.pool.states = [endpoint("a"), endpoint("b")]
    await asyncio.sleep(0.06)
    assert len(engine.began) == 1
    w.others = {}
    while len(engine.began) < 2:
        await asyncio.sleep(0.005)
    assert {sent.endpoint.id for sent in engine.began} == {"a", "b"}
    for _ in tasks:
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert idle(w)


async def test_who_leaves_while_waiting_is_taken_out_at_once() -> None:
    engine, flow = Engine(), Flow()
    w = world({"a": engine}, flow=flow)
    first, second, third = (serve(w, str(number)) for number in range(3))
    await settle()
    second.cancel()
    await settle()
    assert w.gate.describe()["requests"] == 1
    engine.finish()
    await first
    await settle()
    engine.finish()
    await third
    assert engine.models == ["0", "2"]
    assert flow.waited == [(0, "left"), (0, "dispatched")]
    assert idle(w)


async def test_who_leaves_in_the_moment_of_its_turn_gives_its_place_to_the_next() -> None:
    engine = Engine()
    w = world({"a": engine})
    first, second, third = (serve(w, str(number)) for number in range(3))
    await settle()
    engine.finish()
    while not first.done():
        await asyncio.sleep(0)
    # Its turn has come, and it has not run since.
    while w.gate.describe()["requests"] == 2:
        await asyncio.sleep(0)
    second.cancel()
    await settle()
    assert engine.models == ["0", "2"]
    engine.finish()
    await third
    assert idle(w)


async def test_no_more_go_at_once_than_there_is_room_for() -> None:
    engine = Engine()
    w = world({"a": engine, "b": engine}, each=2)
    tasks = [serve(w, str(number)) for number in range(10)]
    await settle()
    assert len(engine.began) == 4
    for _ in range(3):
        engine.finish()
    await settle()
    assert len(engine.began) == 7
    assert sorted(entry.requests for entry in w.inflight.snapshot().values()) == [2, 2]
    for _ in range(7):
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert idle(w)


async def test_a_queued_request_goes_where_there_is_room_and_still_has_the_others_to_fall_back_to() -> None:
    held, other = Engine(), Engine()
    failing = False
    w = world({"a": held, "b": lambda sent: UpstreamRefused("no") if failing else other(sent)}, held={"a": 5})
    tasks = [serve(w, str(number)) for number in range(3)]
    await settle()
    failing = True
    other.finish()
    await settle()
    assert [candidate.id for candidate in w.recorder.decisions[-1].decode] == ["b"]
    while len(held.began) < 2:
        await asyncio.sleep(0.005)
    held.finish()
    held.finish()
    await asyncio.gather(*tasks)
    assert idle(w)


async def test_a_request_that_is_to_be_prefilled_elsewhere_waits_for_room_there() -> None:
    prefill, decode = Engine(prefilled), Engine()
    w = world({"p": prefill, "d": decode}, [endpoint("p", P), endpoint("d", D)], each=1)
    tasks = [serve(w, str(number)) for number in range(2)]
    await settle()
    assert (len(prefill.began), len(decode.began)) == (1, 0)
    prefill.finish()
    await settle()
    assert (len(prefill.began), len(decode.began)) == (1, 1)
    decode.finish()
    await settle()
    assert len(prefill.began) == 2
    assert w.gate.held() == 1, "its place for decoding"
    prefill.finish()
    await settle()
    decode.finish()
    await asyncio.gather(*tasks)
    assert idle(w)


async def test_a_tenant_is_charged_what_was_computed_for_it() -> None:
    engine = Engine()
    w = world({"a": engine}, held={"a": 1})
    first, second = serve(w, "1"), serve(w, "2", Caller("t"))
    await settle()
    engine.finish()
    await first
    await settle()
    engine.finish()
    await second
    ((tenant,),) = (known["tenants"] for known in w.gate.describe()["classes"])
    assert tenant["tenant"] == "t"
    assert tenant["charged_tokens"] == len(ask("2").body) - 16 + 1


async def test_room_is_left_for_a_while_to_who_waits_at_another_router() -> None:
    engine = Engine()
    w = world({"a": engine})
    first, second = serve(w, "1"), serve(w, "2")
    await settle()
    w.notes = {"other": msgspec.msgpack.encode([(5, "t", 0.0, 0.0, [("m", False, 1)])])}
    engine.finish()
    await first
    await settle()
    assert engine.models == ["1"]
    while len(engine.began) < 2:
        await asyncio.sleep(0.005)
    engine.finish()
    await second
    assert idle(w)


async def test_at_the_end_of_the_router_whoever_waits_is_told() -> None:
    engine = Engine()
    w = world({"a": engine})
    first, second = serve(w, "1"), serve(w, "2")
    await settle()
    w.gate.close()
    with pytest.raises(ShuttingDown):
        await second
    engine.finish()
    await first
    assert idle(w)


def policy(each: int, **more: Any) -> FlowPolicy:
    """Every endpoint takes `each` requests."""
    size = Limits(10, 1_000_000)
    return FlowPolicy(
        limits=more.pop("limits", QueueLimits(total=size, each_class=size)),
        detector=ConcurrencyDetector(Watch(), queue_depth=1, max_requests=each),
        objectives=more.pop("objectives", Objectives(OBJECTIVES, max_wait_s=30.0)),
        **more,
    )


async def test_what_waits_survives_another_policy_and_goes_by_its_room() -> None:
    engine = Engine()
    w = world({"a": engine})
    tasks = [serve(w, str(number)) for number in range(4)]
    await settle()
    assert engine.models == ["0"]
    w.gate.apply(policy(3))
    await settle()
    assert engine.models == ["0", "1", "2"]
    w.gate.apply(policy(1, limits=QueueLimits(total=Limits(1, 10), each_class=Limits(1, 10))))
    await settle()
    for _ in tasks:
        engine.finish()
        await settle()
    assert [reply.status for reply in await asyncio.gather(*tasks)] == [200] * 4
    assert engine.models == ["0", "1", "2", "3"]
    assert idle(w)


async def test_priorities_of_another_policy_are_those_of_who_comes_after() -> None:
    engine = Engine()
    w = world({"a": engine})
    tasks = [serve(w, "0"), serve(w, "was high", Caller(objective="high"))]
    await settle()
    w.gate.apply(policy(1, objectives=Objectives({"low": Objective(priority=3)}, max_wait_s=30.0)))
    tasks += [serve(w, "unnamed now", Caller(objective="high")), serve(w, "named now", Caller(objective="low"))]
    await settle()
    for _ in tasks:
        engine.finish()
        await settle()
    await asyncio.gather(*tasks)
    assert engine.models == ["0", "was high", "named now", "unnamed now"]


async def test_a_policy_without_bounds_lets_all_go_that_wait() -> None:
    engine = Engine()
    w = world({"a": engine})
    tasks = [serve(w, str(number)) for number in range(4)]
    await settle()
    w.gate.apply(policy(1)._replace(detector=Unlimited()))
    await settle()
    assert len(engine.began) == 4
    for _ in tasks:
        engine.finish()
    await asyncio.gather(*tasks)
    assert idle(w)
