"""Ranks: which endpoints an upstream makes, and the two ways its ranks are counted. PURE.

An engine is told a rank by its *local* index in ``X-data-parallel-rank``, while its metrics' ``engine`` label, its
``/kv_event_sources`` keys and its event ports use the *global* rank. Behind one address the global ranks are
consecutive, so local = global - the smallest of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from router.core import Endpoint
from router.pool.spec import EndpointSpec


class RankedEndpoint(NamedTuple):
    endpoint: Endpoint
    local: int | None
    """None: this endpoint stands for everything behind its address."""
    global_rank: int | None
    """None: unknown, or everything."""


def expand(spec: EndpointSpec, engines: Collection[int]) -> tuple[RankedEndpoint, ...]:
    """`spec`'s endpoints. `engines`: global ranks that the upstream has shown, empty while it has shown none.

    What the engine shows wins over the configured number: a rank that it has not would be answered with an error.
    """
    size = len(engines) if engines else (spec.data_parallel_size or 1)
    if size == 1:
        return (RankedEndpoint(_endpoint(spec, None), None, min(engines, default=None)),)
    first = min(engines, default=0)
    return tuple(
        RankedEndpoint(_endpoint(spec, local), local, first + local if engines else None) for local in range(size)
    )


def _endpoint(spec: EndpointSpec, rank: int | None) -> Endpoint:
    return Endpoint(
        id=spec.id if rank is None else f"{spec.id}/{rank}",
        url=spec.url,
        role=spec.role,
        rank=rank,
        api_key=spec.api_key,
        labels=spec.labels,
    )
