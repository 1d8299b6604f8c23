"""The body's ``priority``, where a client may not have all that it asks for. PURE."""

from __future__ import annotations

from router.wire.splice import splice


def with_priority(body: bytes, priority: int | None) -> bytes:
    """`body` with this ``priority`` (vLLM's: lower is sooner), or with none. Raises `SpliceError`."""
    if priority is None:
        return splice(body, remove=("priority",))
    return splice(body, set={"priority": b"%d" % priority})
