"""The performance law: which share of requests meets its objective, by engines and load. PURE.

Queueing is in it, not only utilization. Of `n` engines of one kind that take requests at rates `shapes`:

- A prompt waits behind others as in a queue with n servers, first come first served, which is what sending each to the
  engine with the least to compute amounts to: P(wait > t) = C exp(-t / tau), with Sakasegawa's approximation of the
  probability to wait, C = rho ^ (sqrt(2 (n + 1)) - 1), and tau = S (ca2 + cs2) / 2 / (n (1 - rho)), S the mean service
  and ca2, cs2 the dispersion of arrivals and services.
- A decode of m tokens on an engine that prefills as well lasts as a busy period that begins with m steps: its mean is
  m step / (1 - u), the variance of what prefills add m step lambda E[P^2] / (1 - u)^3; that addition is taken as
  gamma-distributed. Batch and step settle where rate x residence = batch.
- Answers that do not fit into the KV space or among the sequences make others wait: the tail of a normal law over the
  tokens held by all n engines together, which a balancing router fills evenly.

`tests/unit/loadtest/replay/test_performance_law.py` holds it against the simulation that drives the real scheduler.
Needs numpy and scipy (``kvrouter[planner]``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, ndtr  # type: ignore[import-untyped]

from router.capacity.demand import Objective, Shape
from router.capacity.variants import Variant
from router.core import Role

Array = NDArray[np.float64]

_FULL = 0.97
"""Utilization beyond which no queue is taken to be stable."""
_ROUNDS = 14
"""Halvings in which the greatest rate is sought."""
_SETTLE = 5
"""Rounds in which batch and step time settle."""


class Capacities(msgspec.Struct, frozen=True):
    """Greatest rates an engine, by [variant, number of engines]."""

    good: Array
    """At which requests meet the objective as often as is wanted; 0 where not even one a long time does."""
    stable: Array
    """At which nothing grows without bound."""
    limit: NDArray[np.str_]
    """What binds `good`: ttft, tpot, kv, or stability."""


class Attained(NamedTuple):
    """Shares of requests, by [variant, number of engines]."""

    both: Array
    ttft: Array
    tpot: Array
    room: Array
    """Of requests that find KV space at once."""


class Law:
    """Of one role in one pool: some variants beside each other, under one mix of shapes."""

    def __init__(
        self,
        variants: Sequence[Variant],
        role: Role,
        shapes: Sequence[Shape],
        objective: Objective,
        *,
        dispersion: float = 1.0,
    ) -> None:
        """`shapes` must have some rate; only their proportions count here."""
        rates = np.array([shape.rate for shape in shapes], dtype=float)
        self._weights = rates / rates.sum()
        self._role = role
        self._objective = objective
        self._dispersion = max(dispersion, 0.5)
        self._variants = list(variants)
        new = np.array([shape.new_tokens for shape in shapes])
        cached = np.array([shape.cached_tokens for shape in shapes])
        self._output = np.maximum([shape.output_tokens for shape in shapes], 1.0)
        self._new, self._prompt = new, new + cached

        def column(values: Sequence[float]) -> Array:
            return np.array(values, dtype=float)[:, None, None]

        laws = [variant.laws for variant in variants]
        self._chunk = column([law.chunk for law in laws])
        self._service = (
            column([law.overhead_s for law in laws])
            + column([law.token_s for law in laws]) * new
            + column([law.pair_s for law in laws]) * new * (cached + new / 2)
        )
        self._transfer = column([law.transfer_base_s for law in laws]) + column(
            [law.transfer_token_s for law in laws]
        ) * (self._prompt)
        self._base = column([law.step_base_s for law in laws])
        self._seq = column([law.step_seq_s for law in laws])
        self._kv = column([law.step_kv_s for law in laws])
        self._space = column([variant.kv_tokens for variant in variants])
        self._seqs = column([variant.max_seqs for variant in variants])

    # What is asked

    def attained(self, counts: Array, rates: Array) -> Attained:
        """`counts`: engines, [1, K] or [V, K]; `rates`: requests a second that each takes, [V, K]."""
        n, rate = counts[..., None], rates[..., None]
        ttft, tpot, room = self._shares(n, rate)
        weigh = self._weights
        return Attained(
            both=(ttft * tpot * room * weigh).sum(-1),
            ttft=(ttft * weigh).sum(-1),
            tpot=(tpot * weigh).sum(-1),
            room=np.broadcast_to(room[..., 0], ttft.shape[:-1]),
        )

    def capacities(self, counts: Sequence[int], attainment: float) -> Capacities:
        """Of one engine of each variant where there are so many; `attainment` is the share wanted of this role."""
        n = np.array([counts], dtype=float)
        most = np.broadcast_to(self._stable(), (len(self._variants), n.shape[1])).copy()
        low, high = np.zeros_like(most), most.copy()
        idle = self.attained(n, low + 1e-9)
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            good = self.attained(n, middle).both >= attainment
            low, high = np.where(good, middle, low), np.where(good, high, middle)
        low = np.where(idle.both >= attainment, low, 0.0)
        return Capacities(good=low, stable=most, limit=self._limits(n, low, most))

    def idle(self) -> float:
        """Share of requests that the best variant would serve within the objective with nobody else there."""
        count = len(self._variants)
        return float(self.attained(np.full((1, 1), 64.0), np.full((count, 1), 1e-9)).both.max(initial=0.0))

    # How it is answered

    def _limits(self, n: Array, rates: Array, most: Array) -> NDArray[np.str_]:
        """By whose share falls most just above the rates found."""
        above = self.attained(n, np.minimum(rates * 1.02 + 1e-9, most))
        lost = np.stack([1 - above.ttft, 1 - above.tpot, 1 - above.room])
        names = np.array(["ttft", "tpot", "kv"])[lost.argmax(0)]
        return np.where(rates > 0.995 * most, "stability", names)

    def _stable(self) -> Array:
        """The rate of one engine, [V, 1], at which work comes as fast as it is done."""
        weigh = self._weights
        prefill = (self._service * weigh).sum(-1)
        tokens = float((self._output * weigh).sum())
        held = float((self._output * (self._prompt + self._output / 2) * weigh).sum()) / tokens
        size = float(((self._prompt + self._output) * self._output * weigh).sum()) / tokens
        # The batch that the KV space or the number of sequences allows, at the step time that it has.
        batch = np.minimum(self._space[..., 0] / size, self._seqs[..., 0])
        step = self._base[..., 0] + (self._seq[..., 0] + self._kv[..., 0] * held) * batch
        decode = tokens * step / np.maximum(batch, 1e-9)
        rate: Array
        match self._role:
            case Role.PREFILL:
                rate = _FULL / prefill
            case Role.DECODE:
                rate = _FULL / decode
            case _:
                rate = _FULL / (prefill + decode)
        return rate

    def _shares(self, n: Array, rate: Array) -> tuple[Array, Array, Array]:
        match self._role:
            case Role.PREFILL:
                ttft = self._first_token(n, rate, self._service, np.zeros_like(self._service))
                return ttft, np.ones_like(ttft), np.ones_like(ttft[..., :1])
            case Role.DECODE:
                return self._decode_only(n, rate)
            case _:
                return self._whole(n, rate)

    def _whole(self, n: Array, rate: Array) -> tuple[Array, Array, Array]:
        weigh, service = self._weights, self._service
        busy = np.minimum(rate * (service @ weigh)[..., None], _FULL)
        step, residence = self._settled(rate, busy)
        ttft = self._first_token(n, rate, service, step)
        begun = (self._output - 1) * step
        tokens = np.maximum(self._output - 1, 1e-9)
        added = begun * busy / (1 - busy)
        # A router that sends each prompt where least is queued spaces the arrivals at each of several engines.
        spaced = self._dispersion * (1 + 1 / n) / 2
        variance = spaced * begun * rate * ((service**2) @ weigh)[..., None] / (1 - busy) ** 3
        allowed = tokens * (self._objective.tpot_s - step)
        tpot = _gamma_within(added, variance, allowed)
        return ttft, np.where(self._output > 1.5, tpot, 1.0), self._room(n, rate, residence)

    def _decode_only(self, n: Array, rate: Array) -> tuple[Array, Array, Array]:
        step, residence = self._settled(rate, np.zeros_like(rate))
        batch = rate * (residence @ self._weights)[..., None]
        # How many decode beside one varies as a Poisson number does; the step that is just allowed gives the batch.
        each = (step - self._base) / np.maximum(batch, 1e-9)
        most = (self._objective.tpot_s - self._base) / np.maximum(each, 1e-12)
        tpot = ndtr((most - batch) / np.sqrt(np.maximum(batch, 1.0)))
        ttft = (self._transfer + 1.5 * step <= self._objective.ttft_s).astype(float)
        shape = np.broadcast_shapes(ttft.shape, tpot.shape)
        return np.broadcast_to(ttft, shape), np.broadcast_to(tpot, shape), self._room(n, rate, residence)

    def _settled(self, rate: Array, busy: Array) -> tuple[Array, Array]:
        """Step time and how long each shape decodes, where rate x residence = batch."""
        weigh, output = self._weights, self._output
        context = (output * (self._prompt + output / 2) * weigh).sum() / (output * weigh).sum()
        tokens = (output * weigh).sum()
        step = self._base + 0.0 * rate
        for _ in range(_SETTLE):
            batch = np.minimum(rate * tokens * step / (1 - busy), self._seqs)
            step = self._base + (self._seq + self._kv * context) * batch
        return step, output * step / (1 - busy)

    def _first_token(self, n: Array, rate: Array, service: Array, step: Array) -> Array:
        """Share of each shape whose prompt is computed in time, on engines whose steps carry decodes of `step`."""
        weigh = self._weights
        chunks = self._new / self._chunk
        # Queued prompts share steps; one alone takes whole ones, and waits for half of the one that is on.
        shared = service + chunks * step
        alone = service + (np.ceil(chunks) + 0.5) * step
        mean = (shared @ weigh)[..., None]
        spread = ((shared**2) @ weigh)[..., None] / mean**2 - 1.0
        busy = np.minimum(rate * mean, _FULL)
        waits = busy ** (np.sqrt(2 * (n + 1)) - 1)
        tau = mean * (self._dispersion + spread) / 2 / (n * (1 - busy))
        left = self._objective.ttft_s - alone - (self._transfer if self._role is Role.PREFILL else 0.0)
        inside = 1 - waits * np.exp(-np.maximum(left, 0.0) / np.maximum(tau, 1e-12))
        return np.where((left > 0) & (rate * mean < _FULL), inside, 0.0)

    def _room(self, n: Array, rate: Array, residence: Array) -> Array:
        weigh, size = self._weights, self._prompt + self._output
        mean = n * rate * ((residence * size) @ weigh)[..., None]
        variance = n * rate * ((residence * size**2) @ weigh)[..., None]
        number = n * rate * (residence @ weigh)[..., None]
        typical = (size * weigh).sum()
        tokens = (n * (self._space - typical / 2) - mean) / np.sqrt(np.maximum(variance, 1e-9))
        seats = (n * self._seqs - number) / np.sqrt(np.maximum(number, 1e-9))
        room: Array = np.minimum(ndtr(tokens), ndtr(seats))
        return room


def _gamma_within(mean: Array, variance: Array, most: Array) -> Array:
    """P(X <= most) for gamma-distributed X; 1 where X is always 0."""
    sure = mean < 1e-9
    shape = np.where(sure, 1.0, mean**2 / np.maximum(variance, 1e-18))
    scale = np.where(sure, 1.0, variance / np.maximum(mean, 1e-9))
    inside = gammainc(shape, np.maximum(most, 0.0) / np.maximum(scale, 1e-12))
    within: Array = np.where(most <= 0, 0.0, np.where(sure, 1.0, inside))
    return within
