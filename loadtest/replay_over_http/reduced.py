"""Reduced: a workload and an engine profile that are cheap enough to be played for real, and shaped as before. PURE.

One token stands for `tokens` of the original, of prompt and answer alike, and everything happens `times` as fast: rates
of prefill, times of a step and KV space are scaled so that every prefill, answer and queue takes 1/`times` of its time.
What changes is the grain: one step gives what were `tokens` steps' tokens.
"""

from __future__ import annotations

import msgspec

from loadtest.replay.workload import Request, Workload
from loadtest.simulator.timing import EngineProfile


class Reduction(msgspec.Struct, frozen=True, kw_only=True):
    tokens: int = 4
    times: float = 4.0


def reduced_profile(profile: EngineProfile, by: Reduction) -> EngineProfile:
    tokens, times = by.tokens, by.times
    return EngineProfile(
        prefill_tokens_per_s=profile.prefill_tokens_per_s / tokens * times,
        attention_s=profile.attention_s * tokens**2 / times,
        step_s=profile.step_s * tokens / times,
        per_seq_s=profile.per_seq_s * tokens / times,
        per_kv_token_s=profile.per_kv_token_s * tokens**2 / times,
        kv_tokens=profile.kv_tokens // tokens,
        chunk=profile.chunk // tokens,
        max_seqs=profile.max_seqs,
    )


def reduced_workload(workload: Workload, by: Reduction, seconds: float) -> Workload:
    """The first `seconds` of reduced time from the first arrival on. Raises ValueError if blocks cannot shrink so."""
    size, rest = divmod(workload.block_size, by.tokens)
    if rest:
        raise ValueError(f"blocks of {workload.block_size} tokens cannot be made {by.tokens} times smaller")
    requests: list[Request] = []
    first = workload.requests[0].at if workload.requests else 0.0
    for request in workload.requests:
        at = (request.at - first) / by.times
        if at >= seconds:
            break
        tail = request.prompt - len(request.blocks) * workload.block_size
        requests.append(
            msgspec.structs.replace(
                request,
                at=at,
                # No prompt ends with a block: its last token is computed in any case, which would cost a whole one.
                prompt=len(request.blocks) * size + max(1, min(tail // by.tokens, size - 1)),
                output=max(1, round(request.output / by.tokens)),
                answer_blocks=(),
            )
        )
    return msgspec.structs.replace(workload, block_size=size, requests=requests)
