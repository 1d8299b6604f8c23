"""Load: what one engine has to do, request by request, as the router sees it; the samples for its laws. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp
from types import MappingProxyType

from router.capacity.laws import Laws, Profile, Segment, pairs, steps
from router.capacity.pace import Pace
from router.capacity.recency import Recency
from router.capacity.reuse import Reuse
from router.core import EngineEstimate

_TOGETHER_S = 0.003
"""First tokens this close came out of one step."""
_SEGMENT_TOKENS = 16_384
"""A stretch this long is a sample; a step may hold parts of two prompts, which evens out over several."""
_OVERDUE = 1.5
"""How many times its expected prefill a request may take that shows no first token, before it counts as decoding."""
_FULL = 0.97
"""Share of the KV space in use from which prompts may wait for memory rather than for computing."""
_STALE_S = 10.0
"""After so long without an event an estimate is made anew, for what the pace forgets."""
_COLD = 2
"""Prefills of a new engine that are no samples: connections, kernels and graphs are made then."""
_IN_TIME = 0.5
"""Of what is evicted though it was just used, the share that would have been asked for in time."""
_HORIZON_S = 120.0
"""Unused for so long, 1/e of that."""
_NOBODY: Mapping[int, int] = MappingProxyType({})


class Flight:
    """One leg of a request on an engine."""

    __slots__ = (
        "at",
        "busy_s",
        "cached_tokens",
        "decoding_since",
        "endpoint_id",
        "followed",
        "kv_area",
        "load",
        "output_tokens",
        "pairs",
        "prefill_steps",
        "prefills",
        "prompt_tokens",
        "sampled",
        "seq_area",
        "streams",
        "tokens",
        "waiting",
    )

    def __init__(
        self,
        *,
        load: Load,
        endpoint_id: str,
        at: float,
        prompt_tokens: int,
        cached_tokens: int,
        sampled: Sequence[int],
        followed: Sequence[int],
        output_tokens: int,
        prefills: bool,
        streams: bool,
    ) -> None:
        self.load = load
        self.endpoint_id = endpoint_id
        self.at = at
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.tokens = prompt_tokens - cached_tokens if prefills else 0
        self.pairs = pairs(self.tokens, cached_tokens) if prefills else 0.0
        self.sampled = sampled
        self.followed = followed
        self.output_tokens = output_tokens
        self.prefills = prefills
        self.streams = streams
        self.waiting = prefills
        self.decoding_since: float | None = None
        self.busy_s = 0.0
        """The engine's prefill time when this began to decode; the areas below likewise."""
        self.prefill_steps = 0.0
        self.seq_area = 0.0
        self.kv_area = 0.0


class Load:
    """One engine's requests and laws."""

    __slots__ = (
        "_age",
        "_aged_at",
        "_area_at",
        "_busy_s",
        "_decoding",
        "_estimate",
        "_kv_area",
        "_kv_tokens",
        "_loading",
        "_pace",
        "_pairs",
        "_prefill_steps",
        "_progress_at",
        "_reuse",
        "_seen",
        "_segment",
        "_seq_area",
        "_tokens",
        "_valid_until",
        "_waiting",
        "laws",
        "recency",
    )

    def __init__(self, laws: Laws, reuse: Reuse) -> None:
        self.laws = laws
        self._reuse = reuse
        self.recency: Recency | None = None
        self._waiting: dict[Flight, None] = {}
        self._tokens = 0
        self._pairs = 0.0
        self._decoding = 0
        self._loading = 0
        self._pace = Pace()
        self._kv_tokens = 0.0
        self._progress_at = 0.0
        self._segment: Segment | None = None
        self._seen = 0
        self._busy_s = 0.0
        self._prefill_steps = 0.0
        self._seq_area = 0.0
        self._kv_area = 0.0
        self._area_at = 0.0
        self._age = 0.0
        self._aged_at: float | None = None
        self._estimate: EngineEstimate | None = None
        self._valid_until = 0.0

    def sized(self, block_size: int, capacity_tokens: int) -> None:
        """The KV space, as soon as it is known."""
        if self.recency is None and block_size and capacity_tokens:
            self.recency = Recency(block_size, capacity_tokens)

    def relearn(self, profile: Profile) -> None:
        """Nothing was learnt here yet, and a better prior is known."""
        self.laws = Laws(profile)
        self._estimate = None

    # What happens

    def dispatched(self, flight: Flight, now: float) -> None:
        if self.recency is not None:
            self.recency.take(flight.sampled)
            self._reuse.take(flight.followed, now)
            self.recency.reserved += flight.output_tokens
        if flight.waiting:
            if not self._waiting:
                self._progress_at = now
            self._waiting[flight] = None
            self._tokens += flight.tokens
            self._pairs += flight.pairs
            self._pace.add(self.laws.prefill_s(flight.tokens, flight.pairs), now)
        else:
            self._loading += 1
        self._estimate = None

    def first_token(self, flight: Flight, now: float) -> None:
        """Of `flight`. Those before it that cannot show theirs have had it too."""
        self._estimate = None
        if flight.waiting:
            for other in list(self._waiting):
                if other is flight:
                    break
                if not other.streams:
                    self._begins(other, now)
            self._sample_prefill(flight, now)
        elif flight.decoding_since is None and not flight.prefills:
            self._sample_transfer(flight, now)
        self._begins(flight, now)

    def answered(self, flight: Flight, output_tokens: int | None, now: float) -> None:
        """The whole answer came, of so many tokens where that is known."""
        if not output_tokens:
            return
        self.laws.answered(output_tokens)
        since = flight.decoding_since
        if since is None or not flight.streams or output_tokens < 2:
            return
        self._advance(now)
        whole = now - since
        taken = whole - (self._busy_s - flight.busy_s)
        if taken < 0.3 * whole or whole <= 0.0:
            return
        self.laws.decoded(
            output_tokens - 1 - (self._prefill_steps - flight.prefill_steps),
            taken,
            (self._seq_area - flight.seq_area) / whole,
            (self._kv_area - flight.kv_area) / whole,
        )

    def gone(self, flight: Flight, now: float) -> None:
        """Nothing of it is left on the engine."""
        self._estimate = None
        if self.recency is not None:
            self.recency.release(flight.sampled, now)
            self._reuse.release(flight.followed, now)
            self.recency.reserved -= flight.output_tokens
        if flight.waiting:
            if next(iter(self._waiting)) is flight:
                self._progress_at = now
            self._leave(flight)
            self._spoil()
        elif flight.decoding_since is not None:
            self._advance(now)
            self._decoding -= 1
            self._kv_tokens -= flight.prompt_tokens + flight.output_tokens / 2
        else:
            self._loading -= 1

    # Samples

    def _sample_prefill(self, flight: Flight, now: float) -> None:
        laws, segment = self.laws, self._segment
        in_order = next(iter(self._waiting)) is flight
        fresh = segment is None or flight.at > segment.end
        if segment is None or fresh or (segment.tokens >= _SEGMENT_TOKENS and now > segment.end + _TOGETHER_S):
            if segment is not None:
                self._close(segment)
            begin = flight.at if segment is None or fresh else segment.end
            segment = self._segment = Segment(begin=begin, end=begin)
        crossed = float(steps(flight.tokens, laws.chunk, self._decoding))
        if not segment.prompts and begin_waits(flight, segment):
            # It came in the middle of a step.
            crossed += 0.5
        step_s = laws.step_s(self._decoding, self._kv_tokens)
        spent = now - segment.end
        segment.prompts += 1
        segment.tokens += flight.tokens
        segment.pairs += flight.pairs
        segment.step_s += crossed * step_s
        segment.end = now
        recency = self.recency
        if not in_order or (recency is not None and recency.held_tokens > _FULL * recency.capacity * recency.unit):
            segment.dirty = True
        if not segment.dirty:
            self._busy_s += spent
            self._prefill_steps += crossed if self._decoding else 0.0
        self._progress_at = now

    def _close(self, segment: Segment) -> None:
        self._seen += segment.prompts
        if self._seen > _COLD:
            self.laws.prefilled(segment)

    def _spoil(self) -> None:
        if self._segment is not None:
            self._close(self._segment)
            self._segment = None

    def _sample_transfer(self, flight: Flight, now: float) -> None:
        if self._waiting:
            return
        step_s = self.laws.step_s(self._decoding + 1, self._kv_tokens + flight.prompt_tokens)
        self.laws.transferred(flight.prompt_tokens - flight.cached_tokens, now - flight.at - 1.5 * step_s)

    # Bookkeeping

    def _begins(self, flight: Flight, now: float) -> None:
        """It decodes from now on."""
        if flight.waiting:
            self._leave(flight)
        elif flight.decoding_since is None:
            self._loading -= 1
        if flight.decoding_since is None:
            self._advance(now)
            self._decoding += 1
            self._kv_tokens += flight.prompt_tokens + flight.output_tokens / 2
            flight.decoding_since = now
            flight.busy_s, flight.prefill_steps = self._busy_s, self._prefill_steps
            flight.seq_area, flight.kv_area = self._seq_area, self._kv_area

    def _leave(self, flight: Flight) -> None:
        del self._waiting[flight]
        flight.waiting = False
        self._tokens -= flight.tokens
        self._pairs -= flight.pairs

    def _advance(self, now: float) -> None:
        passed = now - self._area_at
        self._seq_area += passed * self._decoding
        self._kv_area += passed * self._kv_tokens
        self._area_at = now

    # What is seen of it

    def _missed_per_token(self, now: float) -> float:
        coldest = None if self.recency is None else self.recency.coldest_at
        if coldest is None:
            return 0.0
        age = now - coldest
        if self._aged_at is None:
            self._age = age
        else:
            # What is put there pushes others as long as it stays, which is about so long.
            self._age += (age - self._age) * (1.0 - exp((self._aged_at - now) / max(self._age, 1.0)))
        self._aged_at = now
        return _IN_TIME * exp(-age / _HORIZON_S) + self._reuse.pushed(self._age, now)

    def estimate(self, now: float) -> EngineEstimate:
        known = self._estimate
        if known is None or now >= self._valid_until:
            known = self._estimate = self._made(now)
        return known

    def _made(self, now: float) -> EngineEstimate:
        laws, recency = self.laws, self.recency
        self._valid_until = now + _STALE_S
        head_s = 0.0
        while self._waiting:
            head = next(iter(self._waiting))
            head_s = laws.prefill_s(head.tokens, head.pairs)
            if head.streams:
                break
            due = self._progress_at + _OVERDUE * (head_s + laws.step_s(self._decoding, self._kv_tokens))
            if now < due:
                self._valid_until = min(due, self._valid_until)
                break
            self._begins(head, now)
            self._progress_at = now
            head_s = 0.0
        overhead, token, pair = laws.prefill.theta
        base, seq, kv = laws.step.theta
        start, each = laws.transfer.theta
        return EngineEstimate(
            overhead_s=overhead,
            token_s=token,
            pair_s=pair,
            prefill_confidence=laws.prefill_confidence,
            step_base_s=base,
            step_seq_s=seq,
            step_kv_s=kv,
            step_confidence=laws.step_confidence,
            transfer_base_s=start,
            transfer_token_s=each,
            transfer_confidence=laws.transfer_confidence,
            chunk=laws.chunk,
            queued_s=len(self._waiting) * overhead + token * self._tokens + pair * self._pairs,
            queued_tokens=self._tokens,
            head_s=head_s,
            head_at=self._progress_at,
            requests=len(self._waiting) + self._loading + self._decoding,
            decoding=self._decoding,
            step_s=laws.step_s(self._decoding, self._kv_tokens),
            delayed_per_s=self._pace.delayed_per_s(now),
            output_tokens=laws.output_tokens,
            capacity_tokens=0 if recency is None else recency.capacity * recency.unit,
            held_tokens=0 if recency is None else recency.held_tokens,
            free_tokens=0 if recency is None else recency.free_tokens,
            missed_per_token=self._missed_per_token(now),
            users=_NOBODY if recency is None else recency.users,
            users_stride=1 if recency is None else recency.stride,
        )


def begin_waits(flight: Flight, segment: Segment) -> bool:
    return segment.begin == flight.at
