"""The three laws of an engine, how their samples are made of what was seen, and their priors. PURE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from router.capacity.rls import Rls


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Constants of an engine: a prior, or what was learnt of one, to be kept. Seconds and tokens.

    The defaults are the prior where nobody knows better: half the prefill rate of a 70B model on four H100, which is
    what costs nothing when it is wrong (the policy loses little by half the true rate, most of its gain by double).
    """

    overhead_s: float = 0.005
    token_s: float = 1 / 5000
    pair_s: float = 1.5e-9
    step_base_s: float = 0.012
    step_seq_s: float = 5e-5
    step_kv_s: float = 3e-8
    transfer_base_s: float = 0.005
    transfer_token_s: float = 1e-5
    chunk: int = 8192
    output_tokens: float = 256.0


class Segment(msgspec.Struct):
    """A stretch in which an engine computed prompts without a pause, as seen by their first tokens."""

    begin: float
    end: float
    prompts: int = 0
    tokens: int = 0
    pairs: float = 0.0
    steps: float = 0.0
    """Decode steps that ran along."""
    step_s: float = 0.0
    """Time of these, by the step law."""
    dirty: bool = False
    """Something else than computing made somebody wait: no sample."""


class Laws:
    """One engine's laws, fitted as samples come."""

    __slots__ = ("chunk", "output_tokens", "prefill", "step", "transfer")

    def __init__(self, profile: Profile) -> None:
        self.prefill = Rls((profile.overhead_s, profile.token_s, profile.pair_s), floor=0.002)
        # An engine's batch moves little, and its context with it: what a request more costs is hardly to be told apart
        # from the base. Engines that are alike must not be told apart by that noise, so these two stay near the prior.
        self.step = Rls(
            (profile.step_base_s, profile.step_seq_s, profile.step_kv_s), spread=(1.5, 0.3, 0.3), floor=0.002
        )
        self.transfer = Rls((profile.transfer_base_s, profile.transfer_token_s), floor=0.005)
        self.chunk = profile.chunk
        self.output_tokens = profile.output_tokens

    def prefilled(self, segment: Segment) -> None:
        """A stretch of prefills is over. What ran along is taken off by the step law as it is now."""
        taken = segment.end - segment.begin
        computing = taken - segment.step_s
        if segment.dirty or not segment.tokens or computing < 0.2 * taken:
            return
        self.prefill.update((1.0, segment.tokens, segment.pairs), computing)

    def decoded(self, steps: float, taken_s: float, batch: float, kv_tokens: float) -> None:
        """`steps` decode steps without a prefill took so long, over mean batch and mean context."""
        if steps >= _LEAST_STEPS and taken_s > 0.0:
            self.step.update((1.0, batch, kv_tokens), taken_s / steps)

    def transferred(self, tokens: int, taken_s: float) -> None:
        if taken_s > 0.0:
            self.transfer.update((1.0, tokens), taken_s)

    def answered(self, tokens: int) -> None:
        self.output_tokens += 0.02 * (tokens - self.output_tokens)

    def prefill_s(self, tokens: int, pairs: float) -> float:
        overhead, token, pair = self.prefill.theta
        return overhead + token * tokens + pair * pairs

    def step_s(self, batch: float, kv_tokens: float) -> float:
        if batch <= 0:
            return 0.0
        base, seq, kv = self.step.theta
        return base + seq * batch + kv * kv_tokens

    @property
    def prefill_confidence(self) -> float:
        return self.prefill.confidence((1.0, 2048.0, 2048.0 * 4096))

    @property
    def step_confidence(self) -> float:
        return self.step.confidence((1.0, 16.0, 65_536.0))

    @property
    def transfer_confidence(self) -> float:
        return self.transfer.confidence((1.0, 4096.0))

    def profile(self) -> Profile:
        overhead, token, pair = self.prefill.theta
        base, seq, kv = self.step.theta
        start, each = self.transfer.theta
        return Profile(
            overhead_s=overhead,
            token_s=token,
            pair_s=pair,
            step_base_s=base,
            step_seq_s=seq,
            step_kv_s=kv,
            transfer_base_s=start,
            transfer_token_s=each,
            chunk=self.chunk,
            output_tokens=self.output_tokens,
        )


_LEAST_STEPS = 8


def pairs(tokens: int, context: int) -> float:
    """Pairs of a new token and a token before it, for the attention term."""
    return tokens * (context + tokens / 2)


def steps(tokens: int, chunk: int, decoding: int) -> int:
    """Steps that a prefill of `tokens` is spread over beside so many decodes."""
    return math.ceil(tokens / max(chunk - decoding, 1))


def typical(profiles: Sequence[Profile]) -> Profile:
    """The median of each constant: what an engine that joins is taken for. Raises ValueError without any."""
    values: Mapping[str, Sequence[float]] = {
        name: sorted(getattr(profile, name) for profile in profiles) for name in Profile.__struct_fields__
    }
    return msgspec.convert({name: column[len(column) // 2] for name, column in values.items()}, Profile)
