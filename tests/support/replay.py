"""Workloads, fleets and listeners for tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadtest.replay.fleet import Fleet, Member
from loadtest.replay.policies.base import Built, Contestant, World
from loadtest.replay.policies.catalogue import find
from loadtest.replay.results import Run
from loadtest.replay.simulation import Conditions, Simulation
from loadtest.replay.workload import Request, Workload
from loadtest.simulator.timing import EngineProfile
from router.core import Candidate, Decision, InferenceRequest, Leg, Role, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed

SIZE = 16
PROFILE = EngineProfile(
    prefill_tokens_per_s=1000.0,
    attention_s=0.0,
    step_s=0.01,
    per_seq_s=0.0,
    per_kv_token_s=0.0,
    kv_tokens=16_000,
    chunk=512,
    max_seqs=32,
)


def ask(number: int, at: float, blocks: Sequence[int], *, tail: int = 1, output: int = 10, **more: Any) -> Request:
    return Request(number=number, at=at, prompt=len(blocks) * SIZE + tail, output=output, blocks=blocks, **more)


def workload(*requests: Request) -> Workload:
    return Workload(name="test", block_size=SIZE, requests=requests)


def member(name: str, role: Role = Role.BOTH, profile: EngineProfile = PROFILE) -> Member:
    return Member(name=name, profile=profile, role=role, kv_tokens=profile.kv_tokens)


def fleet(*members: Member, **more: Any) -> Fleet:
    return Fleet(members=members or (member("e0"), member("e1")), **more)


class Recorder:
    """An observer that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.decisions: list[Decision] = []
        self.first: list[FirstToken] = []
        self.ended: list[Ended] = []

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        self.told.append(("decision", request.request_id))
        self.decisions.append(decision)

    def on_dispatch(self, event: Dispatched) -> None:
        self.told.append((f"dispatch {event.leg.value} {event.endpoint_id}", event.request_id))

    def on_leg_failed(self, event: LegFailed) -> None:
        self.told.append((f"failed {event.kind} {event.endpoint_id}", event.request_id))

    def on_first_token(self, event: FirstToken) -> None:
        if event.leg is Leg.PREFILL:
            self.told.append(("prefill answered", event.request_id))
            return
        self.told.append(("first token", event.request_id))
        self.first.append(event)

    def on_end(self, event: Ended) -> None:
        self.told.append((f"end {event.outcome.value}", event.request.request_id))
        self.ended.append(event)


class Fixed:
    """A policy that sends everything to the endpoints named, best first, and keeps the candidates it saw."""

    def __init__(self, *decode: str, prefill: Sequence[str] = ()) -> None:
        self._decode = decode
        self._prefill = prefill
        self.seen: list[dict[str, Candidate]] = []

    def decide(
        self,
        request: InferenceRequest,
        prompt: TokenizedPrompt,
        candidates: Sequence[Candidate],
        *,
        now: float,
        rng: object,
    ) -> Decision:
        by_id = {candidate.id: candidate for candidate in candidates}
        self.seen.append(by_id)
        return Decision(
            decode=tuple(by_id[name] for name in self._decode if name in by_id),
            prefill=tuple(by_id[name] for name in self._prefill if name in by_id),
            reason="fixed",
        )

    @property
    def contestant(self) -> Contestant:
        def build(_world: World) -> Built:
            return Built(policy=self)

        return Contestant(name="fixed", build=build)


def replayed(
    load: Workload,
    policy: str | Contestant,
    engines: Fleet | None = None,
    *observers: Recorder,
    seed: int = 1,
    **conditions: Any,
) -> Run:
    contestant = find(policy) if isinstance(policy, str) else policy
    world = msgspec.convert({"event_lag_s": 0.0, **conditions}, Conditions)
    return Simulation(load, contestant, engines or fleet(), world, seed=seed, observers=observers).run()
