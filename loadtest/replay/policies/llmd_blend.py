"""llm-d's weighted blend: prefix 3, queue 2, KV utilization 2, on scraped metrics alone. PURE.

Scorers as in llm-d-router (prefix: matched share; queue: (max - q) / (max - min), 1 if equal; KV: 1 - usage). Unlike
this router's plugins of the same names it does not add the router's own in-flight requests to what a scrape said, as
llm-d's do not: stale metrics cost it what they cost there.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core import Candidate
from router.scheduling.plugins import Context

_PREFIX, _QUEUE, _KV = 3.0, 2.0, 2.0


def llmd_blend(context: Context, candidates: Sequence[Candidate]) -> list[float]:
    blocks = max(len(context.prompt.block_hashes), 1)
    waiting = [c.state.metrics.waiting or 0.0 if c.state.metrics else 0.0 for c in candidates]
    usage = [c.state.metrics.kv_usage or 0.0 if c.state.metrics else 0.0 for c in candidates]
    most, span = max(waiting), max(waiting) - min(waiting)
    return [
        -_PREFIX * c.match.blocks / blocks - _QUEUE * ((most - q) / span if span else 1.0) - _KV * (1.0 - kv)
        for c, q, kv in zip(candidates, waiting, usage, strict=True)
    ]
