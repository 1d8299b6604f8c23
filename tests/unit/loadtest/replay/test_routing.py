"""The replay takes the director's steps: what observers hear of a request is the same from both."""

from __future__ import annotations

from router.core import Inflight, Role
from router.ports import UpstreamRefused
from tests.support import journey
from tests.support.replay import SIZE, Fixed, Recorder, ask, fleet, member, replayed, workload

P, D = Role.PREFILL, Role.DECODE


async def directed(world: journey.World) -> Recorder:
    """What an observer hears from the director, in order."""
    recorder = Recorder()
    for name in ("on_decision", "on_dispatch", "on_leg_failed", "on_first_token", "on_end"):
        setattr(world.recorder, name, getattr(recorder, name))
    await world.serve()
    return recorder


def words(recorder: Recorder) -> list[str]:
    return [what for what, _ in recorder.told]


async def test_a_whole_request() -> None:
    world = journey.World([journey.endpoint("a")], {"a": lambda _: journey.stream("x", "y")})
    heard = Recorder()
    replayed(workload(ask(0, 0.0, range(4))), Fixed("a").contestant, fleet(member("a")), heard)
    assert words(heard) == words(await directed(world))


async def test_a_request_whose_first_endpoint_refuses() -> None:
    def refuse(_: journey.Sent) -> journey.FakeResponse:
        raise UpstreamRefused

    states = [journey.endpoint("a"), journey.endpoint("b")]
    world = journey.World(states, {"a": refuse, "b": lambda _: journey.stream("x")}, held={"a": 4}, backoff_s=0.0)
    heard = Recorder()
    pool = fleet(member("a"), member("b"), deaths=[(1.0, "a")])
    replayed(workload(ask(0, 1.1, range(4))), Fixed("a", "b").contestant, pool, heard)
    assert words(heard) == words(await directed(world))


async def test_a_request_in_two_legs() -> None:
    states = [journey.endpoint("p", P), journey.endpoint("d", D)]
    world = journey.World(states, {"p": lambda _: journey.prefilled(), "d": lambda _: journey.stream("x")})
    heard = Recorder()
    pool = fleet(member("p", P), member("d", D))
    replayed(workload(ask(0, 0.0, range(4))), Fixed("d", prefill=["p"]).contestant, pool, heard)
    assert words(heard) == words(await directed(world))


async def test_both_count_the_same_in_flight() -> None:
    counted: list[Inflight] = []

    def engine(_: journey.Sent) -> journey.FakeResponse:
        counted.append(world.inflight.get("a"))
        return journey.stream("x")

    world = journey.World([journey.endpoint("a")], {"a": engine}, held={"a": 1})
    asked = journey.request()
    await world.serve(asked)
    tokens = len(asked.body)
    blocks = range(tokens // SIZE)
    policy = Fixed("a")
    load = workload(ask(0, 0.0, blocks[:1]), ask(1, 5.0, blocks, tail=tokens % SIZE, output=500), ask(2, 5.001, []))
    replayed(load, policy.contestant, fleet(member("a")))
    assert [policy.seen[2]["a"].inflight] == counted
    assert counted[0].prefill_tokens == tokens - SIZE
