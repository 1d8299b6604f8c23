"""KeyLimits: what each API key may ask for in a minute and at one time. PURE.

A request is let in while its key has a whole request left, some token left and a place free. Its prompt is charged when
it has been counted, its answer when it is over: a key that took more than it had waits until that is paid off.
Implements `router.observability.events.Observer`, which is how it learns of tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from router.core import Decision, InferenceRequest, TokenizedPrompt
from router.errors import RateLimited
from router.flowcontrol.bucket import Bucket
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed
from router.ports import Clock

Fields = list[tuple[bytes, bytes]]


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """What one key may have; None: as much as it likes."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None
    """Prompt and answer together."""
    concurrent: int | None = None
    burst_s: float = 10.0
    """How much of a minute's rate may come at once, in seconds of it."""

    def __bool__(self) -> bool:
        return not (self.requests_per_min is None and self.tokens_per_min is None and self.concurrent is None)


class Used(msgspec.Struct):
    """Taken here since it was last told to the other routers."""

    requests: int = 0
    tokens: int = 0


class _Standing:
    """One key's buckets and its requests under way."""

    __slots__ = ("active", "rate", "requests", "tokens")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.requests = _bucket(rate.requests_per_min, rate.burst_s, now)
        self.tokens = _bucket(rate.tokens_per_min, rate.burst_s, now)
        self.active = 0


def _bucket(per_min: int | None, burst_s: float, now: float) -> Bucket | None:
    if per_min is None:
        return None
    rate = per_min / 60
    return Bucket(rate, max(rate * burst_s, 1.0), now)


class KeyLimits:
    """`rates` by key name, under "" of those who come without a key. Who is not in it is unlimited.

    `share`: the part of each rate that is this router's, 1 while routers tell each other what they used.
    """

    def __init__(self, rates: Mapping[str, Rate], clock: Clock) -> None:
        self._clock = clock
        self._rates = {name: rate for name, rate in rates.items() if rate}
        self._standings: dict[str, _Standing] = {}
        self._used: dict[str, Used] = {}
        self._charged: dict[int, int] = {}
        """Prompt tokens by the identity of a request under way: clients may name two requests alike."""
        self.share = 1.0
        self.refused: Counter[str] = Counter()
        """By what ran out: requests | tokens | concurrent."""

    @property
    def limited(self) -> bool:
        """There is a key that has limits."""
        return bool(self._rates)

    def apply(self, rates: Mapping[str, Rate]) -> None:
        """New rates. A key whose rate stays keeps what it has used."""
        self._rates = {name: rate for name, rate in rates.items() if rate}
        for name, standing in list(self._standings.items()):
            rate = self._rates.get(name)
            if rate is None:
                # Its requests under way find nothing to leave, which is as good.
                del self._standings[name]
            elif rate != standing.rate:
                fresh = self._standings[name] = _Standing(rate, self._clock())
                fresh.active = standing.active

    def enter(self, key: str) -> Fields:
        """Lets one request of `key` in, to be followed by `leave`. Returns header fields for its answer.

        Raises `RateLimited`, and then there is nothing to leave.
        """
        if key not in self._rates:
            return []
        now = self._clock()
        standing = self._standing(key, now)
        self._check(standing, now)
        standing.active += 1
        if standing.requests is not None:
            standing.requests.take(1, now, self.share)
            self._note(key).requests += 1
        return self._fields(standing, now)

    def leave(self, key: str) -> None:
        """The request that `enter` let in is over."""
        standing = self._standings.get(key)
        if standing is not None and standing.active:
            standing.active -= 1

    def charge(self, key: str, tokens: int) -> None:
        """Tokens used, or given back when negative."""
        standing = self._standings.get(key)
        if standing is None or standing.tokens is None or not tokens:
            return
        standing.tokens.take(tokens, self._clock(), self.share)
        self._note(key).tokens += tokens

    def take_used(self) -> dict[str, Used]:
        """What was used here since the last call, for the other routers."""
        used, self._used = self._used, {}
        return used

    def used_elsewhere(self, key: str, requests: int, tokens: int) -> None:
        """Other routers gave `key` so much."""
        if key not in self._rates:
            return
        now = self._clock()
        standing = self._standing(key, now)
        if standing.requests is not None:
            standing.requests.take(requests, now, self.share)
        if standing.tokens is not None:
            standing.tokens.take(tokens, now, self.share)

    def active(self) -> Mapping[str, int]:
        """Requests under way by key, of keys that have limits and requests."""
        return {name: standing.active for name, standing in self._standings.items() if standing.active}

    # Observer

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        if self._standings and prompt.token_count:
            self.charge(request.caller.key or "", prompt.token_count)
            self._charged[id(request)] = prompt.token_count

    def on_dispatch(self, event: Dispatched) -> None: ...

    def on_leg_failed(self, event: LegFailed) -> None: ...

    def on_first_token(self, event: FirstToken) -> None: ...

    def on_end(self, event: Ended) -> None:
        charged = self._charged.pop(id(event.request), 0)
        if self._standings:
            # The engine's own count, where it told one, takes the place of ours.
            prompt = event.prompt_tokens if event.endpoint_id is not None and event.prompt_tokens else charged
            self.charge(event.request.caller.key or "", prompt - charged + (event.output_tokens or 0))

    def _standing(self, key: str, now: float) -> _Standing:
        standing = self._standings.get(key)
        if standing is None:
            standing = self._standings[key] = _Standing(self._rates[key], now)
        return standing

    def _note(self, key: str) -> Used:
        used = self._used.get(key)
        if used is None:
            used = self._used[key] = Used()
        return used

    def _check(self, standing: _Standing, now: float) -> None:
        rate, share = standing.rate, self.share
        if rate.concurrent is not None and standing.active >= rate.concurrent:
            self._refuse("concurrent", f"{rate.concurrent} requests at one time", 1.0, standing, now)
        requests = standing.requests
        # A hair less than one: what has come in is a sum of rounded parts.
        if requests is not None and requests.level(now, share) < 1 - 1e-9:
            wait_s = requests.wait_s(1, now, share)
            self._refuse("requests", f"{rate.requests_per_min} requests a minute", wait_s, standing, now)
        tokens = standing.tokens
        if tokens is not None and tokens.level(now, share) <= 0:
            wait_s = tokens.wait_s(0, now, share)
            self._refuse("tokens", f"{rate.tokens_per_min} tokens a minute", wait_s, standing, now)

    def _refuse(self, kind: str, limit: str, wait_s: float, standing: _Standing, now: float) -> None:
        self.refused[kind] += 1
        raise RateLimited(
            f"This API key may have {limit}, and has had them; try again later.",
            retry_after_s=max(math.ceil(wait_s), 1),
            fields=self._fields(standing, now),
        )

    def _fields(self, standing: _Standing, now: float) -> Fields:
        """The ``x-ratelimit-*`` fields that OpenAI's clients know."""
        fields: Fields = []
        for what, per_min, bucket in (
            (b"requests", standing.rate.requests_per_min, standing.requests),
            (b"tokens", standing.rate.tokens_per_min, standing.tokens),
        ):
            if bucket is not None:
                left = max(math.floor(bucket.level(now, self.share) + 1e-9), 0)
                fields += (
                    (b"x-ratelimit-limit-" + what, b"%d" % (per_min or 0)),
                    (b"x-ratelimit-remaining-" + what, b"%d" % left),
                    (b"x-ratelimit-reset-" + what, _duration(bucket.full_in_s(now, self.share))),
                )
        return fields


def _duration(seconds: float) -> bytes:
    """As OpenAI writes one: ``0s``, ``350ms``, ``12s``, ``6m0s``."""
    if seconds < 1:
        milliseconds = math.ceil(seconds * 1000 - 1e-6)
        return b"%dms" % milliseconds if 0 < milliseconds < 1000 else b"%ds" % round(seconds)
    whole = math.ceil(seconds - 1e-9)
    minutes, rest = divmod(whole, 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
