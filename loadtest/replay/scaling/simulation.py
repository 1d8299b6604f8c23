"""ScalingSimulation: a replay whose fleet a law changes: engines start with a delay, drain before they go, and are paid
from the moment they are asked for.

A request that finds nobody is held until an engine serves, as flow control does. Latency-tolerant requests, where the
router holds them back, are let through only while engines have room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from loadtest.replay.fleet import Fleet, Member
from loadtest.replay.policies.base import Contestant
from loadtest.replay.results import Result
from loadtest.replay.routing import Flight
from loadtest.replay.scaling.base import Gauge, Sample, ScalingLaw, Seen
from loadtest.replay.simulation import Conditions, Simulation
from loadtest.replay.workload import Request, Workload
from loadtest.simulator.timing import EngineProfile
from router.core import Role
from router.observability.events import Outcome

_SETTLE_S = 30.0
"""A draining engine stays at least so long: a hand-off may still be on its way to it."""
_TICK_S = 5.0
_SAMPLES_S = 60.0
_ROOM, _SEQS = 0.1, 0.04
"""Engines have room for batch work while what is queued on each is computed in so many seconds, and while each decodes
for less than this share of the sequences that it could: every prompt of batch delays answers beside it."""


class Step(msgspec.Struct, frozen=True):
    """The fleet from `at` on."""

    at: float
    ready: int
    total: int
    """Paid ones: starting and draining included."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    engine_s: float
    """Seconds of engines, from being asked for until they were gone."""
    actions: int
    """Times at which a law asked for another number than before."""
    steps: Sequence[Step]
    held: int
    """The most requests that were held at one time."""


class ScalingSimulation(Simulation):
    def __init__(
        self,
        workload: Workload,
        contestant: Contestant,
        fleet: Fleet,
        conditions: Conditions,
        law: ScalingLaw,
        *,
        seed: int,
        startup_s: float,
        batch: Collection[int] = (),
        preempt: bool = True,
    ) -> None:
        """`fleet` is what there is at the beginning; its first member of each role is the model of all that come.
        `preempt`: batch requests give way."""
        observers = () if law.observer is None else (law.observer,)
        super().__init__(workload, contestant, fleet, conditions, seed=seed, observers=observers)
        self._law = law
        self._startup_s = startup_s
        self._batch = frozenset(batch)
        self._preempt = preempt
        self._pattern = {member.role: member for member in reversed(fleet.members)}
        self._roles = {member.name: member.role for member in fleet.members}
        self._begun = {member.name: 0.0 for member in fleet.members}
        self._ended: dict[str, float] = {}
        self._starting: dict[str, Role] = {}
        self._draining: dict[str, float] = {}
        self._numbers = len(fleet.members)
        self._actions = 0
        self._last: dict[Role, int] = {}
        self._steps: list[Step] = []
        self._held: deque[Request] = deque()
        self._waiting_batch: deque[Request] = deque()
        self._most_held = 0
        self._samples: deque[Sample] = deque()
        self._arrived = self._prompt_tokens = self._output_tokens = 0
        self._push(_TICK_S, self._tick, None)
        self._push(law.interval_s, self._control, None)
        self._note()

    def ledger(self) -> Ledger:
        return Ledger(
            engine_s=sum(self._ended.get(name, self.now) - begin for name, begin in self._begun.items()),
            actions=self._actions,
            steps=self._steps,
            held=self._most_held,
        )

    # The law

    def _control(self, _: Any) -> None:
        wanted = dict(self._law.desired(self._seen()))
        if wanted != self._last:
            self._actions += bool(self._last)
            self._last = wanted
        for role in self._pattern:
            self._follow(role, max(wanted.get(role, 0), 0))
        self._note()
        self._push(self.now + self._law.interval_s, self._control, None)

    def _seen(self) -> Seen:
        engines = []
        for state in self._up:
            name = state.endpoint.id
            engine = self._alive[name]
            engine.advance(self.now)
            engines.append(
                Gauge(
                    role=self._roles[name],
                    running=engine.running,
                    waiting=engine.waiting,
                    kv_usage=engine.cache.used_fraction,
                    prefill_tokens=self._routing.inflight.get(name).prefill_tokens,
                )
            )
        while self._samples and self._samples[0].at < self.now - _SAMPLES_S:
            self._samples.popleft()
        starting: dict[Role, int] = {}
        for role in self._starting.values():
            starting[role] = starting.get(role, 0) + 1
        seen = Seen(
            now=self.now,
            engines=engines,
            starting=starting,
            samples=list(self._samples),
            arrived=self._arrived,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            held=len(self._held),
        )
        self._arrived = self._prompt_tokens = self._output_tokens = 0
        return seen

    def _follow(self, role: Role, wanted: int) -> None:
        up = [state.endpoint.id for state in self._up if self._roles[state.endpoint.id] is role]
        starting = [name for name, its in self._starting.items() if its is role]
        for _ in range(wanted - len(up) - len(starting)):
            self._start(role)
        too_many = len(up) + len(starting) - wanted
        for name in starting[::-1][: max(too_many, 0)]:
            del self._starting[name]
            self._ended[name] = self.now
            too_many -= 1
        idle_first = sorted(up, key=lambda name: (self._routing.inflight.get(name).tokens, name))
        for name in idle_first[: max(too_many, 0)]:
            self._drain(name)

    def _start(self, role: Role) -> None:
        pattern = self._pattern[role]
        member = Member(name=f"e{self._numbers}", profile=pattern.profile, role=role, kv_tokens=pattern.kv_tokens)
        self._numbers += 1
        self._roles[member.name] = role
        self._begun[member.name] = self.now
        self._starting[member.name] = role
        self._push(self.now + self._startup_s, self._started, member)

    def _started(self, member: Member) -> None:
        if self._starting.pop(member.name, None) is None:
            return
        self._join(member)
        self._note()
        self._let_in()

    def _drain(self, name: str) -> None:
        self._up = [state for state in self._up if state.endpoint.id != name]
        self._draining[name] = self.now

    def _tick(self, _: Any) -> None:
        for name, since in list(self._draining.items()):
            engine = self._alive[name]
            engine.advance(self.now)
            busy = engine.running or engine.waiting or engine.cache.used_fraction > 0.0
            if not busy and self.now >= since + _SETTLE_S:
                del self._draining[name]
                del self._alive[name]
                self._ended[name] = self.now
                self._routing.leave(name)
                self._note()
        self._let_in()
        self._push(self.now + _TICK_S, self._tick, None)

    def _note(self) -> None:
        total = len(self._up) + len(self._starting) + len(self._draining)
        self._steps.append(Step(self.now, len(self._up), total))

    # Requests

    def _arrive(self, request: Request) -> None:
        self._arrived += 1
        self._prompt_tokens += request.prompt
        if self._preempt and request.number in self._batch:
            self._waiting_batch.append(request)
            self._let_in()
        elif self._able():
            super()._arrive(request)
        else:
            self._held.append(request)
            self._most_held = max(self._most_held, len(self._held))

    def _able(self) -> bool:
        """Every role that the pool works with is there."""
        roles = {self._roles[state.endpoint.id] for state in self._up}
        return all(role in roles for role in self._pattern)

    def _let_in(self) -> None:
        while self._held and self._able():
            super()._arrive(self._held.popleft())
        while self._waiting_batch and self._able() and self._roomy():
            super()._arrive(self._waiting_batch.popleft())

    def _roomy(self) -> bool:
        """Prompt work and decodes leave the interactive requests enough on average."""
        prefill = [state.endpoint.id for state in self._up if self._roles[state.endpoint.id] is not Role.DECODE]
        queued = sum(self._routing.inflight.get(name).prefill_tokens for name in prefill)
        rate = self._profile(prefill[0]).prefill_tokens_per_s
        decoding = [state.endpoint.id for state in self._up if self._roles[state.endpoint.id] is not Role.PREFILL]
        running = sum(self._routing.inflight.get(name).requests for name in decoding)
        most = _SEQS * self._profile(decoding[0]).max_seqs
        return queued < _ROOM * rate * len(prefill) and running < most * len(decoding)

    def _profile(self, name: str) -> EngineProfile:
        return self._alive[name].profile

    def _over(self, flight: Flight, outcome: Outcome) -> None:
        before = len(self._results)
        super()._over(flight, outcome)
        for result in self._results[before:]:
            self._learn(result)
        if self._waiting_batch:
            self._let_in()

    def _learn(self, result: Result) -> None:
        if result.outcome is Outcome.OK and result.ttft_s is not None:
            self._output_tokens += result.output
            self._samples.append(Sample(self.now, result.ttft_s, result.tpot_s))
