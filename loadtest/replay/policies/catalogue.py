"""Which policies there are by name, and what a name on the command line means.

The field's formulas get what helps them: exact prefix matches, exact in-flight counts, metrics without age unless the
name says otherwise, and constants of the engine that is replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from loadtest.replay.policies.base import Built, Contestant, Cost, Reference, World
from loadtest.replay.policies.cache_aware import CacheAware
from loadtest.replay.policies.dynamo import DynamoLinear
from loadtest.replay.policies.least_requests import least_requests
from loadtest.replay.policies.llmd_blend import llmd_blend
from loadtest.replay.policies.lmetric import lmetric
from loadtest.replay.policies.pooled import PooledBound
from loadtest.replay.policies.power_of_two import power_of_two
from loadtest.replay.policies.product import contestant, from_file, one_profile
from loadtest.replay.policies.session_affinity import SessionAffinity
from router.errors import ConfigError
from router.scheduling.config import SchedulingSettings


def _reference(name: str, cost: Callable[[World], Cost], *, pooled: bool = False) -> Contestant:
    return Contestant(name=name, build=lambda world: Built(policy=Reference(cost(world))), pooled=pooled)


def _sticky(penalty_ms: float) -> Callable[[World], SchedulingSettings]:
    def settings(world: World) -> SchedulingSettings:
        affinity = {
            "type": "prefix-cache-affinity-filter",
            "parameters": {
                "maxTTFTPenaltyMs": penalty_ms,
                "peakPrefillThroughput": world.profile.prefill_tokens_per_s,
            },
        }
        return one_profile(("prefix-cache-affinity-filter",), {"token-load-scorer": 1}, plugins=(affinity,))

    return settings


CATALOGUE = {
    entry.name: entry
    for entry in (
        contestant("default", SchedulingSettings()),
        contestant("default-told", SchedulingSettings(), told=True),
        contestant("round-robin", one_profile(picker="round-robin-picker")),
        contestant("random", one_profile(picker="random-picker")),
        _reference("least-requests", lambda _: least_requests),
        _reference("power-of-two", lambda _: power_of_two),
        _reference("session-affinity", lambda _: SessionAffinity()),
        _reference("cache-aware", lambda _: CacheAware()),
        _reference("llm-d", lambda _: llmd_blend),
        contestant("llm-d-sticky", _sticky(18_000.0)),
        contestant("llm-d-sticky-2s", _sticky(2_000.0)),
        _reference("dynamo", lambda _: DynamoLinear(1.0)),
        _reference("dynamo-w4", lambda _: DynamoLinear(4.0)),
        _reference("lmetric", lambda _: lmetric),
        _reference("pooled", lambda world: PooledBound(world.engines), pooled=True),
    )
}
"""Every built-in name. `pooled` is a bound, no policy."""


def find(name: str) -> Contestant:
    """The contestant called `name`: a built-in name, or a YAML file; ``@SECONDS`` behind it is the age of its metrics.

    Raises `ConfigError`.
    """
    plain, at, age = name.rpartition("@")
    if at and plain:
        try:
            seconds = float(age)
        except ValueError:
            seconds = -1.0
        if not 0.0 <= seconds <= 3600.0:
            raise ConfigError(f"--policy: {name}: {age!r} is no age of 0 to 3600 s: write something like {plain}@1")
        return msgspec.structs.replace(find(plain), name=name, metrics_age_s=seconds)
    if name in CATALOGUE:
        return CATALOGUE[name]
    if name.endswith((".yaml", ".yml")):
        return from_file(Path(name))
    close = get_close_matches(name, CATALOGUE, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    if "," in name:
        hint = "give --policy once for each. "
    raise ConfigError(f"--policy: no policy {name!r}: {hint}There are {', '.join(CATALOGUE)}, or a .yaml file")
