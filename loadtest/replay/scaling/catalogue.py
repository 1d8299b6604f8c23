"""Laws of scaling by name: ``NAME`` or ``NAME@KNOB``."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from loadtest.replay.scaling.base import Given, ScalingLaw
from loadtest.replay.scaling.planned import Clairvoyant, Planned, rules_of, variant_of
from loadtest.replay.scaling.references import Hpa, KedaSlo, Kpa, LoadPlanner, Static, Wva
from loadtest.simulator.timing import EngineProfile
from router.errors import ConfigError

Make = Callable[[Given, EngineProfile, float], ScalingLaw]


def _load_planner(given: Given, profile: EngineProfile, share: float) -> ScalingLaw:
    # What a profiling run shows: prefills one after the other, and the batch whose steps just meet the objective.
    held = 2000
    batch = (given.tpot_s - profile.step_s) / (profile.per_seq_s + profile.per_kv_token_s * held)
    batch = max(min(batch, profile.max_seqs, profile.kv_tokens / held), 1.0)
    step = profile.decode_s(int(batch), int(batch) * held)
    return LoadPlanner(given, share, profile.prefill_tokens_per_s, batch / step)


def _planner(given: Given, profile: EngineProfile, headroom: float) -> ScalingLaw:
    # A day that is compressed leaves no time for the stabilization that is right for a whole one.
    rules = rules_of(given, headroom=headroom, margin=0.05, stabilization_s=90.0)
    return Planned(given, variant_of(profile, given.startup_s), rules)


MAKERS: dict[str, tuple[float, Make]] = {
    "planner": (0.0, _planner),
    "clairvoyant": (1.0, lambda g, p, knob: Clairvoyant(g, variant_of(p, g.startup_s), knob)),
    "static": (8.0, lambda g, _, knob: Static(g, knob)),
    "hpa-concurrency": (12.0, lambda g, _, knob: Hpa(g, knob, "concurrency")),
    "hpa-kv": (0.1, lambda g, _, knob: Hpa(g, knob, "kv")),
    "aibrix-kpa": (12.0, lambda g, _, knob: Kpa(g, knob)),
    "llm-d-keda": (1.0, lambda g, _, knob: KedaSlo(g, knob)),
    "llm-d-wva": (0.1, lambda g, _, knob: Wva(g, knob)),
    "dynamo-load": (0.5, _load_planner),
}
"""Name -> (its knob's default, what makes it)."""


def make_law(name: str, given: Given, profile: EngineProfile) -> ScalingLaw:
    """Raises `ConfigError`."""
    plain, _, knob = name.partition("@")
    if plain not in MAKERS:
        close = get_close_matches(plain, MAKERS, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"--scaling: no law {plain!r}: {hint}There are {', '.join(MAKERS)}")
    default, make = MAKERS[plain]
    try:
        value = float(knob) if knob else default
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1e6:
        raise ConfigError(f"--scaling: {name}: {knob!r} is no number: write something like {plain}@{default:g}")
    return make(given, profile, value)
