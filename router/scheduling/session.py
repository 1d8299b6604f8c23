"""Request headers as plugins read them, and the session a request says it belongs to. PURE."""

from __future__ import annotations

from router.core import InferenceRequest
from router.scheduling.plugins import Context

SESSION_HEADERS = (
    "x-session-id",
    "x-session-token",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "x-smg-routing-key",
)
"""Read in this order; the first that has a value counts."""


def header(request: InferenceRequest, name: str) -> str | None:
    """The value of a header, whether it steers routing or just goes upstream; None when absent or empty.

    `name` in lower case. Credentials, hop-by-hop and untrusted routing-control fields are never here.
    """
    value = request.routing_headers.get(name)
    if value is None:
        wire = name.encode("latin-1", "replace")
        value = next((found.decode("latin-1") for field, found in request.headers if field == wire), None)
    return value or None


def session_id(context: Context, name: str | None = None) -> str | None:
    """The whole value of the header `name`, or of the first of `SESSION_HEADERS`; None when there is none.

    Ids are compared whole: two that share a beginning (``session-1``, ``session-12``) are two sessions.
    """
    if name is not None:
        return header(context.request, name.lower())
    known = context.request.routing_headers
    return next((known[name] for name in SESSION_HEADERS if known.get(name)), None)
