"""Pools: which endpoints make one, of which variant each is, and what of it can be counted on. PURE.

A pool is all endpoints that serve the same base model, under that model's name. It is remembered while it is empty, so
that a pool scaled to zero can be woken. An endpoint's variant is its label ``variant``; without one, it is the first. A
label that no variant in the file has is a variant of its own: what is there of it counts, as a slow engine until its
laws are learnt, and no more of it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from router.capacity.laws import Profile
from router.capacity.plan import Fleet, Key
from router.capacity.variants import Variant, learnt
from router.core import EndpointState, EngineEstimate, Health

DEFAULT = "default"
LABEL = "variant"
_MOST = 64
_MOST_STRANGERS = 16


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that was asked for and does not serve yet."""

    key: Key
    pool: str
    overdue: bool = False


class Pools:
    def __init__(self, variants: Sequence[Variant]) -> None:
        self._variants = {variant.name: variant for variant in variants}
        self._first = next(iter(self._variants), "")
        self._strangers: dict[str, None] = {}
        self._models: dict[str, str] = {}
        """Model -> pool."""

    def look(self, states: Sequence[EndpointState]) -> None:
        """Learns which model belongs to which pool."""
        for state in states:
            name = pool_of(state)
            for model in state.models:
                if len(self._models) < _MOST * 16 or model in self._models:
                    self._models[model] = name

    def of(self, model: str | None) -> str:
        """The pool of a request for that model."""
        if model is not None and model in self._models:
            return self._models[model]
        names = set(self._models.values())
        return names.pop() if len(names) == 1 else DEFAULT

    def knows(self, model: str | None) -> bool:
        """Whether there is or was a pool that serves the model; before any engine was seen, any will do."""
        return not self._models or model is None or model in self._models

    def names(self, states: Sequence[EndpointState], most: int = _MOST) -> list[str]:
        """None while endpoints are there of which none has said what it serves."""
        known = dict.fromkeys([*self._models.values(), *(pool_of(state) for state in states if state.models)])
        if known:
            return list(known)[:most]
        return [] if any(state.health in (Health.HEALTHY, Health.UNKNOWN) for state in states) else [DEFAULT]

    def where(self, state: EndpointState) -> str:
        """The endpoint's pool; of one that has not said yet what it serves, the only one there is."""
        return pool_of(state) if state.models else self.of(None)

    def variant_of(self, state: EndpointState) -> str:
        named = state.endpoint.labels.get(LABEL, self._first)
        if named not in self._variants and named not in self._strangers:
            if len(self._strangers) >= _MOST_STRANGERS:
                return self._first
            self._strangers[named] = None
        return named

    def strangers(self) -> list[str]:
        """Variants that endpoints are labelled with and no file tells of, in the order in which they came."""
        return list(self._strangers)

    def fleet(self, pool: str, states: Sequence[EndpointState], starting: Sequence[Starting]) -> Fleet:
        """Those that are down are not counted on but there; draining ones are about to go."""
        ready: dict[Key, int] = {}
        silent: dict[Key, int] = {}
        for state in states:
            if self.where(state) == pool and state.health is not Health.DRAINING:
                of = silent if state.health is Health.UNHEALTHY else ready
                key = (state.endpoint.role, self.variant_of(state))
                of[key] = of.get(key, 0) + 1
        counts: tuple[dict[Key, int], dict[Key, int]] = ({}, {})
        for engine in starting:
            # What was asked for before its model was known is taken for this pool's.
            if engine.pool in (pool, DEFAULT):
                of = counts[engine.overdue]
                of[engine.key] = of.get(engine.key, 0) + 1
        return Fleet(ready=ready, starting=counts[0], hung=counts[1], silent=silent)

    def engines(self, states: Sequence[EndpointState]) -> dict[str, tuple[Key, float | None]]:
        """Healthy endpoints: id -> role and variant, and when its process began."""
        return {
            state.endpoint.id: ((state.endpoint.role, self.variant_of(state)), state.process_start)
            for state in states
            if state.health is Health.HEALTHY
        }

    def variants(
        self,
        states: Sequence[EndpointState],
        profiles: Mapping[str, Profile],
        sure: Mapping[str, EngineEstimate],
        startup_s: Callable[[str], float | None],
    ) -> list[Variant]:
        """As the endpoints that carry each have shown it: endpoint id -> profile and estimate; variant -> start-up."""
        found = []
        for variant in [*self._variants.values(), *self._unknown(states)]:
            its = [state for state in states if self.variant_of(state) == variant.name]
            known = [
                (profiles[state.endpoint.id], min(e.prefill_confidence, e.step_confidence))
                for state in its
                if state.endpoint.id in profiles and (e := sure.get(state.endpoint.id)) is not None
            ]
            sizes = [(state.num_blocks or 0) * (state.block_size or 0) for state in its]
            found.append(learnt(variant, known, sizes, startup_s(variant.name)))
        return found

    def _unknown(self, states: Sequence[EndpointState]) -> list[Variant]:
        """As dear as any, so that nothing known goes for it."""
        carried = [self.variant_of(state) for state in states]
        price = max((variant.cost_per_hour for variant in self._variants.values()), default=1.0)
        return [
            Variant(name=name, confidence=0.0, cost_per_hour=price, most=carried.count(name))
            for name in self._strangers
            if name in carried
        ]


def pool_of(state: EndpointState) -> str:
    """The base model that the endpoint serves, the first by name; the default pool while nothing is known."""
    bases = sorted(name for name, card in state.models.items() if card.parent is None)
    return bases[0] if bases else DEFAULT
