from __future__ import annotations

import asyncio

import pytest

from router.errors import NoEndpoint
from router.planning.wake import Wake


def wake(**more: float) -> Wake:
    options = {"most": 2, "wait_s": 30.0, **more}
    return Wake(
        most=int(options["most"]),
        wait_s=options["wait_s"],
        pool_of=lambda _: "m",
        knows=lambda name: name == "m",
        coming="nobody starts one",
    )


async def test_requests_wait_until_an_engine_is_there_and_are_counted() -> None:
    its, able = wake(), False
    waiting = [asyncio.create_task(its.until(lambda: able, "m")) for _ in range(2)]
    await its.asked.wait()
    await asyncio.sleep(0)
    assert its.held == {"m": 2}
    its.look()
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    able = True
    its.look()
    await asyncio.gather(*waiting)
    assert not its.held


async def test_nobody_waits_beyond_the_most_nor_for_an_unknown_model_nor_for_ever() -> None:
    its = wake(most=1, wait_s=0.01)
    first = asyncio.create_task(its.until(lambda: False, "m"))
    await asyncio.sleep(0)
    with pytest.raises(NoEndpoint, match=r"nobody starts one\. 1 requests wait.*capacity\.max_held"):
        await its.until(lambda: False, "m")
    await its.until(lambda: False, "unknown")
    assert its.held == {"m": 1}
    with pytest.raises(NoEndpoint, match=r"nobody starts one\. None has come up.*0\.01 s.*capacity\.hold_s"):
        await first
    assert not its.held


async def test_a_client_that_leaves_is_no_longer_counted() -> None:
    its = wake()
    waiting = asyncio.create_task(its.until(lambda: False, "m"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not its.held
