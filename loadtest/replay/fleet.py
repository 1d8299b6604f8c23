"""Fleet: which engines there are, of what kind, which die and which join. PURE."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.simulator.timing import EngineProfile
from router.core import Role


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One engine and its endpoint."""

    name: str
    profile: EngineProfile
    role: Role = Role.BOTH
    kv_tokens: int


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    members: Sequence[Member]
    deaths: Sequence[tuple[float, str]] = ()
    """(seconds, name)"""
    joins: Sequence[tuple[float, Member]] = ()


def slower(profile: EngineProfile, speed: float) -> EngineProfile:
    """The same engine at `speed` times the speed."""
    return msgspec.structs.replace(
        profile,
        prefill_tokens_per_s=profile.prefill_tokens_per_s * speed,
        attention_s=profile.attention_s / speed,
        step_s=profile.step_s / speed,
        per_seq_s=profile.per_seq_s / speed,
        per_kv_token_s=profile.per_kv_token_s / speed,
    )
