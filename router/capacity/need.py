"""Need: what a pool wants of engines, and what it gets, as values. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from router.capacity.sizing import Sizing
from router.capacity.variants import Variant
from router.core import Role


class Form(StrEnum):
    AGGREGATED = "aggregated"
    DISAGGREGATED = "disaggregated"

    @property
    def roles(self) -> tuple[Role, ...]:
        return (Role.BOTH,) if self is Form.AGGREGATED else (Role.PREFILL, Role.DECODE)


MOST_DRAIN = 0.9
"""Of a variant's price: what draining one may cost in the programme, so that fewer are always cheaper in the end."""
Counts = Mapping[tuple[Role, str], int]
"""(role, variant's name) -> engines; what is not in it is none."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """One pool, ready to be solved."""

    pool: str
    sizings: Mapping[Role, Sizing]
    """Of every role of every form in question."""
    rate: float
    """Interactive requests a second that must meet the objective."""
    survive_rate: float = 0.0
    """What must be carried when one engine of a role is gone; 0: nothing."""
    total_rate: float = 0.0
    """Interactive and due batch requests together."""
    whole: Mapping[Role, Sequence[float]] = {}
    """By variant, how many of those together an engine takes."""
    present: Counts = {}
    least: int = 0
    """Engines of each role."""
    most: int = 1024
    start_cost: Mapping[str, float] = {}
    """By variant, money an hour to which one start amounts."""
    drain_cost: Mapping[str, float] = {}
    switch_cost: float = 0.0
    """The same for another form than the present one."""
    form: Form | None = None
    """The present one."""
    floor: Counts = {}
    """Engines that stay."""

    @property
    def forms(self) -> list[Form]:
        """Those in question, in which all that stays has a role."""
        return [
            form
            for form in Form
            if all(role in self.sizings for role in form.roles) and all(role in form.roles for role, _ in self.floor)
        ]

    @property
    def variants(self) -> tuple[Variant, ...]:
        return next(iter(self.sizings.values())).variants


class Solution(NamedTuple):
    form: Form
    counts: dict[tuple[Role, str], int]
    cost: float
    """Money an hour of the engines, changes apart."""


class Unsolved(Exception):
    """There is no such plan; the message says why, as far as is known."""
