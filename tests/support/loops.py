"""Runs an async test on asyncio's own loop and on uvloop, whose transports differ; a task left over fails it."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    async def checked(*args: Any, **kwargs: Any) -> None:
        await test(*args, **kwargs)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            # asyncio's own servers finish a failed handshake in a task.
            _, left = await asyncio.wait(left, timeout=2)
        assert not left, f"tasks left running: {left}"

    @functools.wraps(test)
    def run(*args: Any, loop_factory: Callable[[], asyncio.AbstractEventLoop], **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(checked(*args, **kwargs))

    # What pytest reads: without it, functools.wraps would show an async test without the new parameter.
    del run.__wrapped__
    own = inspect.signature(test)
    extra = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    vars(run)["__signature__"] = own.replace(parameters=[*own.parameters.values(), extra])
    parametrized: Callable[..., None] = pytest.mark.parametrize(
        "loop_factory", list(_LOOPS.values()), ids=list(_LOOPS)
    )(run)
    return parametrized
