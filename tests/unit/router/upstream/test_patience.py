"""A time limit counts what has come, not when this process looks at it."""

from __future__ import annotations

import asyncio
import gc
import socket
import time

import pytest

from router.upstream.patience import within


async def test_what_is_done_in_time_is_given_and_what_fails_fails_as_it_does() -> None:
    assert await within(5.0, asyncio.sleep(0, "done")) == "done"

    async def fails() -> None:
        raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        await within(5.0, fails())


async def test_what_is_not_done_in_time_is_ended() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await within(0.01, waits())
    assert ended.is_set()


async def test_a_connection_that_stood_while_the_loop_was_held_up_is_taken() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop.call_soon(time.sleep, 0.1)
        transport, _ = await within(0.02, loop.create_connection(asyncio.Protocol, *server.getsockname()))
        transport.close()


async def test_who_is_cancelled_ends_the_work() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    task = asyncio.create_task(within(60.0, waits()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_work_that_fails_as_its_caller_is_cancelled_is_no_exception_that_nobody_heard_of(turns: int) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    begun, gate = asyncio.Event(), asyncio.Event()

    async def fails() -> None:
        begun.set()
        await gate.wait()
        raise OSError

    caller = asyncio.create_task(within(60.0, fails()))
    await begun.wait()
    gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    del caller
    gc.collect()
    assert unheard == []
