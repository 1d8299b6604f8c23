"""The pooled bound: every engine sees one cache as large as all of theirs together, and the true least TTFT wins. PURE.

No router can have it; what a policy misses of it is what placement costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from loadtest.replay.engine import Engine
from loadtest.replay.policies.base import uncached
from router.core import Candidate
from router.scheduling.plugins import Context


class PooledBound:
    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def __call__(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [self._ttft(context, candidate) for candidate in candidates]

    def _ttft(self, context: Context, candidate: Candidate) -> float:
        engine = self._engines[candidate.id]
        engine.advance(context.now)
        profile, tokens = engine.profile, uncached(context, candidate)
        ahead = engine.pending()
        work = sum(profile.prefill_s(n, p) for n, p in ahead)
        work += profile.prefill_s(tokens, context.prompt.token_count - tokens)
        room = max(profile.chunk - engine.decoding, 1)
        steps = math.ceil((tokens + sum(n for n, _ in ahead)) / room)
        return work + steps * profile.decode_s(engine.decoding, engine.kv_tokens)
