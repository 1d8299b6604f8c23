"""Demand: what a pool's traffic asks for, as values: shapes with rates, how urgent, how sure. PURE.

Lengths are tokens, rates are requests a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class Qos(StrEnum):
    """What a request can put up with."""

    INTERACTIVE = "interactive"
    BATCH = "batch"
    """Tolerates waiting: fills valleys and gives way to the others."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are alike, by their means."""

    rate: float
    new_tokens: float
    """Of the prompt, to be computed."""
    cached_tokens: float = 0.0
    """Of the prompt, found in a cache."""
    output_tokens: float = 256.0


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One pool's interactive traffic, and the batch work beside it."""

    shapes: Sequence[Shape] = ()
    batch: Sequence[Shape] = ()
    """Latency-tolerant traffic that must be served in the long run, at the rate at which it is due."""
    dispersion: float = 1.0
    """Variance over mean of the number of arrivals in a short time; 1 for a Poisson process."""
    error: float = 0.0
    """Relative standard deviation of the forecast that this is."""
    chance: float = 0.0
    """The part of it that a forecast of traffic that stays what it is would have too."""
    calm_rate: float = 0.0
    """Of interactive requests, in the calm times of the last hour."""
    falling_s: float | None = None
    """Over so many seconds the rate has been falling by more than chance explains; None: it has not."""
    backlog_tokens: float = 0.0
    """Prompt tokens that wait now to be computed."""
    held: int = 0
    """Requests that wait because no endpoint can take them."""
    confidence: float = 1.0
    """0..1: how much has been seen."""

    @property
    def rate(self) -> float:
        """Of interactive requests."""
        return sum(shape.rate for shape in self.shapes)

    def scaled(self, factor: float) -> Demand:
        """The same mix at so many times the interactive rate."""
        shapes = [msgspec.structs.replace(shape, rate=shape.rate * factor) for shape in self.shapes]
        return msgspec.structs.replace(self, shapes=shapes, calm_rate=self.calm_rate * factor)

    def colder(self, share: float) -> Demand:
        """With that share of what caches now give to be computed again."""
        shapes = [
            msgspec.structs.replace(
                shape,
                new_tokens=shape.new_tokens + share * shape.cached_tokens,
                cached_tokens=(1.0 - share) * shape.cached_tokens,
            )
            for shape in self.shapes
        ]
        return msgspec.structs.replace(self, shapes=shapes)


class Objective(msgspec.Struct, frozen=True, kw_only=True):
    """What interactive requests of a pool are promised. Seconds."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05
    attainment: float = 0.99
    """Share of requests (0..1) that must meet both."""


def merged(shapes: Sequence[Shape], most: int) -> list[Shape]:
    """At most `most` shapes with the same total work: the least frequent go into the ones most like them."""
    left = sorted(shapes, key=lambda shape: -shape.rate)
    while len(left) > most:
        least = left.pop()
        near = min(range(len(left)), key=lambda place: _distance(left[place], least))
        left[near] = _together(left[near], least)
        left.sort(key=lambda shape: -shape.rate)
    return left


def _distance(one: Shape, other: Shape) -> float:
    def ratio(a: float, b: float) -> float:
        low, high = sorted((a + 32.0, b + 32.0))
        return high / low

    return ratio(one.new_tokens, other.new_tokens) * ratio(one.output_tokens, other.output_tokens)


def _together(one: Shape, other: Shape) -> Shape:
    rate = one.rate + other.rate

    def mean(a: float, b: float) -> float:
        return (one.rate * a + other.rate * b) / rate if rate else a

    return Shape(
        rate=rate,
        new_tokens=mean(one.new_tokens, other.new_tokens),
        cached_tokens=mean(one.cached_tokens, other.cached_tokens),
        output_tokens=mean(one.output_tokens, other.output_tokens),
    )
