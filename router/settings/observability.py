"""Settings of what the router tells of itself and of its requests. PURE."""

from __future__ import annotations

from typing import Literal

from router.settings.section import Section


class UsageSettings(Section):
    """Token counts of streams."""

    inject_stream_usage: bool = False
    """Ask engines for usage on streams whose client did not; the extra chunk is taken out again. vLLM then puts
    `system_fingerprint` into that chunk instead of the last choice's, so clients no longer see it."""


class MetricsSettings(Section):
    """What `/metrics` says."""

    enabled: bool = True
    """Serve `/metrics`."""


class LogSettings(Section):
    """What is written to standard error, and the request log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level written."""
    format: Literal["text", "json"] = "text"
    """`json`: one object a line."""
    requests: str | None = None
    """File that gets a line a request, to be replayed (`docs/replay.md`): times, lengths, numbered block hashes,
    decision and outcome, no prompt; null: none is written."""
