"""How long a request may take, as its client or the proxy before this router says. PURE.

A time can only be shortened here: what the router's own settings allow stays the most there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from router.errors import InvalidRequest

DEADLINE: Final = "x-kvrouter-deadline-ms"
"""Milliseconds from the request's arrival to the end of its answer."""
EXPECTED: Final = "x-envoy-expected-rq-timeout-ms"
"""The same as Envoy tells whoever it asks: past it, Envoy has given up. 0: it never does."""
QUEUE_TTL: Final = "x-llm-d-inference-ttl"
"""llm-d's: the longest wait for room, as a Go duration."""

_MOST_MS: Final = 1e10
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_GO_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,9})?)(h|ms|m|s|us|µs|ns)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def allowed_s(said: Mapping[str, str]) -> float | None:
    """Seconds for the whole request, the least of what `said` (header fields by lower-case name) gives; None: no bound.

    Raises `InvalidRequest` where `DEADLINE` is no number of milliseconds; a proxy's word that cannot be read is none.
    """
    own, proxys = said.get(DEADLINE), said.get(EXPECTED)
    if own is None and proxys is None:
        return None
    bounds = []
    if own is not None:
        asked = _milliseconds(own)
        if not asked:
            raise InvalidRequest(f"{DEADLINE} must be a number of milliseconds above 0, like 30000.", param=DEADLINE)
        bounds.append(asked)
    if proxys is not None and (expected := _milliseconds(proxys)):
        bounds.append(expected)
    return min(bounds) / 1000 if bounds else None


def queue_ttl_s(said: Mapping[str, str]) -> float | None:
    """The longest wait that `QUEUE_TTL` asks for; None: it asks for none, or cannot be read."""
    value = said.get(QUEUE_TTL)
    return None if value is None else duration_s(value)


def duration_s(text: str) -> float | None:
    """A Go duration such as ``1m30s`` or ``250ms``, in seconds; None where it is none, or is not above 0."""
    total, at = 0.0, 0
    while at < len(text):
        part = _GO_PART.match(text, at)
        if part is None:
            return None
        total += float(part[1]) * _UNITS[part[2]]
        at = part.end()
    return total if total > 0.0 else None


def _milliseconds(value: str) -> float:
    """0 where it is no number."""
    number = float(value) if _NUMBER.fullmatch(value.strip()) else 0.0
    return min(number, _MOST_MS)
