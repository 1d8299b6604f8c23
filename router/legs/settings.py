"""LegSettings: how often, how long and where else a leg is tried. PURE."""

from __future__ import annotations

import msgspec


class LegSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_attempts: int = 3
    """Decode endpoints tried, the first included."""
    prefill_attempts: int = 2
    """Prefill endpoints tried before the decode endpoint prefills by itself."""
    backoff_s: float = 0.025
    """Mean pause before the second attempt, doubled for each further one, with jitter."""
    backoff_most_s: float = 1.0
    retry_statuses: frozenset[int] = frozenset({502, 503, 504})
    first_byte_timeout_s: float = 300.0
    prefill_timeout_s: float = 60.0
    retry_within_s: float = 60.0
    """No further attempt begins later than this after the request arrived."""
    expected_output_tokens: int = 256
    """Counted for a request that does not say how much it may produce."""
    response_headers: bool = True
    """``x-kvrouter-*`` on answers."""
    inject_stream_usage: bool = False
    continue_streams: bool = False
    """Streams that break off are gone on with elsewhere, where that is exact."""
