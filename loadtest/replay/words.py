"""Words that people read, in the number that they stand for. PURE."""

from __future__ import annotations


def how_many(count: int, of: str) -> str:
    """``1 engine``, ``2 engines``."""
    return f"{count} {of}" if count == 1 else f"{count} {of}s"
