"""A time limit that a held-up event loop does not shorten."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

_T = TypeVar("_T")
_TURNS: Final = 16
"""Enough for what lies ready in the sockets to become a result."""


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of `work`, or what it raises. Raises TimeoutError when it is not done in time, and ends it.

    A loop that was held up finds the timer due and the answer there in one and the same turn, and `asyncio.timeout`
    would let the timer win: a peer would be blamed for what this process did. Here what has come counts, however late
    it is looked at.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
        for _ in range(_TURNS):
            if task.done():
                return task.result()
            await asyncio.sleep(0)
        raise TimeoutError
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif not task.cancelled():
            # It may have failed in the turn in which the caller was cancelled: then nobody else asks what became of it.
            task.exception()
