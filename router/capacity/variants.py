"""Variant: a kind of engine that can be started, what it can do and what it costs; read, learnt and kept. PURE.

A variant is one engine on one kind of hardware (``h100-tp4``). Its laws are `router.capacity.laws.Profile`'s: given by
hand in a YAML file, or taken from what the router's engine model learnt of the endpoints that carry its label. An
unknown variant is taken for the conservative prior.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from router.capacity.laws import Profile, typical
from router.core import Role


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of engine. Seconds, tokens, money an hour."""

    name: str
    roles: tuple[Role, ...] = (Role.BOTH, Role.PREFILL, Role.DECODE)
    """What engines of it can be started for."""
    hardware: str | None = None
    """The accelerator that quotas count, e.g. ``h100``."""
    accelerators: int = 1
    """How many of these one engine takes."""
    cost_per_hour: float = 1.0
    startup_s: float = 90.0
    """From asking for an engine to its first useful token."""
    laws: Profile = Profile()
    kv_tokens: int = 200_000
    max_seqs: int = 256
    confidence: float = 1.0
    """0..1: 0 is the prior, 1 is given by hand or learnt well."""
    least: int = 0
    most: int = 1024
    """Bounds on the engines of this variant, over all roles of a pool."""

    def __post_init__(self) -> None:
        for name in ("cost_per_hour", "startup_s", "kv_tokens", "max_seqs", "accelerators"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be a positive number")
        if not 0 <= self.least <= self.most:
            raise ValueError("least must not be negative, nor above most")
        if not self.roles:
            raise ValueError("roles must name at least one of both, prefill, decode")
        if not self.name.strip():
            raise ValueError("name must not be empty")


class VariantError(ValueError):
    """Variants that cannot be used; the message is one sentence with the mend."""


def read(document: object) -> tuple[Variant, ...]:
    """From a YAML document as `router.plain_yaml` loads it: ``{variants: [{name: ..., laws: {token_s: ...}}, ...]}``.

    Raises VariantError.
    """
    found = document.get("variants") if isinstance(document, Mapping) else None
    if not isinstance(found, Sequence) or isinstance(found, str) or not found:
        raise VariantError("there is no list named variants: write variants: [{name: h100, cost_per_hour: 8.0}]")
    for number, each in enumerate(found):
        _check_laws(each.get("name", number) if isinstance(each, Mapping) else number, each)
    try:
        variants = msgspec.convert(found, tuple[Variant, ...])
    except msgspec.ValidationError as error:
        raise VariantError(f"variants: {error}: see docs/autoscaling.md for the form") from None
    names = [variant.name for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise VariantError(f"variants: {twice} is there twice: give each its own name")
    return variants


def _check_laws(name: object, variant: object) -> None:
    """What the laws' types do not say: one that is misspelt must not leave the prior in force."""
    laws = variant.get("laws") if isinstance(variant, Mapping) else None
    if not isinstance(laws, Mapping):
        return
    for key, value in laws.items():
        if key not in Profile.__struct_fields__:
            raise VariantError(
                f"variants: {name}: laws has no {key}: it may have {', '.join(Profile.__struct_fields__)}"
            )
        if isinstance(value, int | float) and not 0.0 <= value < math.inf:
            raise VariantError(f"variants: {name}: laws.{key} is {value:g}: give a number from 0 on")
    for key in _POSITIVE:
        if laws.get(key, 1) == 0:
            raise VariantError(f"variants: {name}: laws.{key} is 0: no engine computes in no time, give what it takes")


_POSITIVE = ("token_s", "step_base_s", "chunk", "output_tokens")


def serves(variants: Sequence[Variant], roles: Sequence[Role]) -> bool:
    """Whether there is a variant for each of the roles."""
    return all(any(role in variant.roles for variant in variants) for role in roles)


def written(variants: Sequence[Variant]) -> dict[str, object]:
    """What `read` takes, as plain values for a YAML or JSON file."""
    return {"variants": msgspec.to_builtins(list(variants))}


def learnt(
    variant: Variant,
    profiles: Sequence[tuple[Profile, float]],
    kv_tokens: Sequence[int] = (),
    startup_s: float | None = None,
) -> Variant:
    """The variant as its endpoints have shown it: `profiles` with the confidence (0..1) of each.

    Where none is trusted, what was given by hand stays; without that the prior does, which is pessimistic. A start-up
    time is taken as far as it is not out of all proportion to the one given: engines that nobody can place start late.
    """
    if startup_s is not None:
        longest = _LONGEST_START * variant.startup_s
        variant = msgspec.structs.replace(variant, startup_s=min(max(startup_s, _SHORTEST_START_S), longest))
    trusted = [(profile, confidence) for profile, confidence in profiles if confidence >= _TRUSTED]
    sizes = sorted(size for size in kv_tokens if size > 0)
    if sizes:
        variant = msgspec.structs.replace(variant, kv_tokens=sizes[len(sizes) // 2])
    if not trusted:
        return variant
    return msgspec.structs.replace(
        variant,
        laws=typical([profile for profile, _ in trusted]),
        confidence=sum(confidence for _, confidence in trusted) / len(trusted),
    )


_TRUSTED = 0.5
_LONGEST_START = 4.0
_SHORTEST_START_S = 1.0
