"""The session a request says it belongs to, for the session-affinity plugins. PURE."""

from __future__ import annotations

from router.scheduling.plugins import Context

SESSION_HEADERS = (
    "x-session-id",
    "x-session-token",
    "x-claude-code-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
)
"""Read in this order; the first that has a value counts."""


def session_id(context: Context, header: str | None = None) -> str | None:
    """The whole value of `header`, or of the first of `SESSION_HEADERS`; None when there is none.

    Ids are compared whole: two that share a beginning (``session-1``, ``session-12``) are two sessions.
    """
    headers = context.request.routing_headers
    for name in SESSION_HEADERS if header is None else (header.lower(),):
        value = headers.get(name)
        if value:
            return value
    return None
