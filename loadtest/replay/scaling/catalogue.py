"""Laws of scaling by name: ``NAME``, ``NAME@KNOB``, or ``NAME@PREFILL/DECODE`` where each role has its own knob."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches

from loadtest.replay.scaling.base import Given, Knob, ScalingLaw
from loadtest.replay.scaling.planned import Clairvoyant, Planned, replayed, variant_of
from loadtest.replay.scaling.references import Hpa, KedaSlo, Kpa, LoadPlanner, Static, Wva
from loadtest.simulator.timing import EngineProfile
from router.capacity.plan import Rules
from router.core import Role
from router.errors import ConfigError

Make = Callable[[Given, EngineProfile, Knob], ScalingLaw]


def _load_planner(given: Given, profile: EngineProfile, share: Knob) -> ScalingLaw:
    # What a profiling run shows: prefills one after the other, and the batch whose steps just meet the objective.
    held = 2000
    batch = (given.tpot_s - profile.step_s) / (profile.per_seq_s + profile.per_kv_token_s * held)
    batch = max(min(batch, profile.max_seqs, profile.kv_tokens / held), 1.0)
    step = profile.decode_s(int(batch), int(batch) * held)
    return LoadPlanner(given, share, profile.prefill_tokens_per_s, batch / step)


def _planned(given: Given, profile: EngineProfile, rules: Rules) -> ScalingLaw:
    return Planned(given, variant_of(profile, given.startup_s), rules)


MAKERS: dict[str, tuple[float, Make]] = {
    "planner": (0.99, lambda g, p, knob: _planned(g, p, replayed(g, attainment=max(knob.values())))),
    "planner-bursts": (4.0, lambda g, p, knob: _planned(g, p, replayed(g, burst=max(knob.values())))),
    "clairvoyant": (1.0, lambda g, p, knob: Clairvoyant(g, variant_of(p, g.startup_s), max(knob.values()))),
    "static": (8.0, lambda g, _, knob: Static(g, knob)),
    "hpa-concurrency": (12.0, lambda g, _, knob: Hpa(g, knob, "concurrency")),
    "hpa-kv": (0.1, lambda g, _, knob: Hpa(g, knob, "kv")),
    "aibrix-kpa": (12.0, lambda g, _, knob: Kpa(g, knob)),
    "llm-d-keda": (1.0, lambda g, _, knob: KedaSlo(g, knob)),
    "llm-d-wva": (0.1, lambda g, _, knob: Wva(g, knob)),
    "dynamo-load": (0.5, _load_planner),
}
"""Name -> (its knob's default, what makes it)."""
_BOUNDS = {"planner": (0.01, 0.9999), "planner-bursts": (1.0, 100.0), "static": (1.0, 1e4)}
"""Of knobs that do not go from just above 0 to any number."""


def make_law(name: str, given: Given, profile: EngineProfile) -> ScalingLaw:
    """Raises `ConfigError`."""
    plain, knob = _read(name, given)
    return MAKERS[plain][1](given, profile, knob)


def first_fleet(name: str, given: Given, profile: EngineProfile) -> Mapping[Role, int]:
    """Every law begins with what the first requests need, but the one that keeps what it begins with."""
    plain, knob = _read(name, given)
    if plain == "static":
        return {role: int(count) for role, count in knob.items()}
    return Clairvoyant(given, variant_of(profile, given.startup_s), 1.0).first()


def _read(name: str, given: Given) -> tuple[str, Knob]:
    plain, _, text = name.partition("@")
    if plain not in MAKERS:
        close = get_close_matches(plain, MAKERS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"--scaling: no law {plain!r}: {hint}There are {', '.join(MAKERS)}")
    default = MAKERS[plain][0]
    try:
        values = [float(part) for part in text.split("/")] if text else [default]
    except ValueError:
        values = []
    if len(values) not in (1, len(given.roles)) or not all(0.0 < value < 1e6 for value in values):
        raise ConfigError(f"--scaling: {name}: {text!r} is no number above 0: write something like {plain}@{default:g}")
    low, high = _BOUNDS.get(plain, (0.0, 1e6))
    if not all(low <= value <= high for value in values):
        raise ConfigError(f"--scaling: {name}: give a number from {low:g} to {high:g}, like {plain}@{default:g}")
    return plain, dict(zip(given.roles, values * len(given.roles), strict=False))
