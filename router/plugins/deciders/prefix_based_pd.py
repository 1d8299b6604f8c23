"""prefix-based-pd-decider: prefill elsewhere when enough of the prompt is not cached on the decode endpoint. PURE.

llm-d's rule: the prompt has at least `promptTokens` tokens and at least `nonCachedTokens` of them are not held by the
chosen decode endpoint; 0 for the latter means never. Load is not considered.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from router.core import Candidate
from router.scheduling.parameters import Parameters
from router.scheduling.plugins import Context, Verdict

_YES = Verdict(True, "pd")
_NEVER = Verdict(False, "pd-never")
_SHORT = Verdict(False, "pd-short")
_CACHED = Verdict(False, "pd-cached")


class PrefixBasedPdDecider(Parameters, frozen=True):
    non_cached_tokens: Annotated[int, Meta(ge=0)] = 0
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0

    def decide(self, context: Context, decode: Candidate) -> Verdict:
        """Reasons: ``pd``, ``pd-never``, ``pd-short`` (whatever is cached), ``pd-cached`` (long, but cached)."""
        if not self.non_cached_tokens:
            return _NEVER
        prompt = context.prompt
        if prompt.token_count < max(self.prompt_tokens, self.non_cached_tokens):
            return _SHORT
        if prompt.token_count - decode.match.blocks * prompt.block_size < self.non_cached_tokens:
            return _CACHED
        return _YES
