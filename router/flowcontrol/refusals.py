"""What a client is told whose request is not let in, or waited in vain. PURE."""

from __future__ import annotations

from router.errors import Overloaded, ShuttingDown
from router.flowcontrol.queues import Refusal

_NO_ROOM = "No endpoint has room for this request"


def refused(reason: Refusal, retry_after_s: int) -> Overloaded:
    """There is no room in the queue."""
    if reason == "too-large":
        return Overloaded(f"{_NO_ROOM}, and its body is too large to wait in the queue.")
    what = "requests of negative priority are refused" if reason == "shed" else "the queue is full"
    return Overloaded(f"{_NO_ROOM} and {what}; try again in {retry_after_s} s or later.", retry_after_s=retry_after_s)


def evicted(waited_s: float, retry_after_s: int, *, busy: bool) -> Overloaded:
    """Its room was given to another. `busy`: no endpoint has room for anybody."""
    return _in_vain(waited_s, "had to make room for others", retry_after_s, busy)


def expired(waited_s: float, retry_after_s: int, *, busy: bool) -> Overloaded:
    """Its time in the queue is over. `busy`: no endpoint has room for anybody."""
    return _in_vain(waited_s, "was not served in time", retry_after_s, busy)


def shutting_down() -> ShuttingDown:
    return ShuttingDown("The router is shutting down; send the request to another one.", retry_after_s=1)


def _in_vain(waited_s: float, why: str, retry_after_s: int, busy: bool) -> Overloaded:
    room = "All endpoints are busy" if busy else "What room endpoints have is kept for requests that go first"
    return Overloaded(
        f"{room}: after {waited_s:.1f} s in the queue the request {why}; try again in {retry_after_s} s or later.",
        retry_after_s=retry_after_s,
    )
