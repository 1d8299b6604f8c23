"""A whole router over one stub engine for fuzz tests, and what must hold after any number of bad inputs.

``FUZZ_EXAMPLES`` is the number of inputs over all parts (default 5,000); ``FUZZ_RANDOM=1`` takes other ones each time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings

from router.api.exchange import Exchange
from router.api.http_protocol import BoundedHttp
from tests.support.field import Field, field
from tests.support.stub_engine import Call, serve

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "5000"))
T = TypeVar("T")


def share(part: float) -> settings:
    """Hypothesis settings of a test that has this part of all examples."""
    return settings(
        max_examples=max(round(EXAMPLES * part), 1),
        deadline=None,
        database=None,
        derandomize=not os.environ.get("FUZZ_RANDOM"),
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


class World:
    """A running router and the loop it runs in, for tests that are no coroutines."""

    def __init__(self, runner: asyncio.Runner, at: Field) -> None:
        self._runner = runner
        self.at = at

    @property
    def app(self) -> Any:
        return self.at.router.app

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)


@contextmanager
def fuzzed() -> Iterator[World]:
    with asyncio.Runner() as runner:
        held = field(_answer)
        at = runner.run(held.__aenter__())
        world = World(runner, at)
        world.run(_warm(world))
        before = world.run(_left(world))
        try:
            yield world
            after = world.run(_left(world))
            assert after["exchanges"] == 0
            assert after["connections"] <= before["connections"]
            assert after["tasks"] <= before["tasks"] + 2, "tasks are left"
            assert after["files"] <= before["files"] + 8, "files are left open"
        finally:
            runner.run(held.__aexit__(None, None, None))


async def _answer(call: Call) -> None:
    """Like any engine in good health; of a hundred thousand calls only the last are remembered."""
    del call.engine.calls[:-50]
    await serve(call)


async def _warm(world: World) -> None:
    assert (await world.at.chat()).status_code == 200


async def _left(world: World) -> dict[str, int]:
    """What is still held once everything is over."""
    await world.at.at_rest(within_s=30)
    for _ in range(20):
        await asyncio.sleep(0.01)
    gc.collect()
    slots = (await world.at.client.get("/debug/slots")).json()
    assert slots["at_rest"], slots
    return {
        "exchanges": sum(isinstance(held, Exchange) for held in gc.get_objects()),
        "connections": sum(isinstance(held, BoundedHttp) for held in gc.get_objects()),
        "tasks": len(asyncio.all_tasks()),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()) if Path("/proc/self/fd").is_dir() else 0,
    }


def judge(status: int, headers: dict[bytes, bytes], body: bytes, *, head: bool = False) -> None:
    """No failure of the router's own, and each refusal of its in OpenAI's shape."""
    assert status < 500 or status in (501, 503), (status, body[:500])
    if status >= 400 and not head and b"x-kvrouter-endpoint" not in headers:
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
