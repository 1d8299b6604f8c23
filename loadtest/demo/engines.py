"""``python -m loadtest.demo.engines SPEC READY``: all simulated engines of a demonstration in one process.

SPEC is a JSON `Fleet`; once all listen, READY is put in place whole: a JSON list of addresses in the fleet's order.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Literal

import msgspec

from loadtest.simulator.local import start_engines
from loadtest.simulator.settings import EngineConfig

Role = Literal["prefill", "decode", "both"]


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    roles: tuple[Role, ...]
    speed: float = 1.0
    """The engines' clocks run this many times faster than the wall clock."""


async def run(fleet: Fleet, ready: Path) -> None:
    """Until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    configs = [EngineConfig(role=role, speed=fleet.speed, seed=seed) for seed, role in enumerate(fleet.roles)]
    engines = await start_engines(configs)
    try:
        written = ready.with_suffix(".part")
        await asyncio.to_thread(written.write_bytes, msgspec.json.encode([engine.url for engine in engines]))
        written.rename(ready)
        await stop.wait()
    finally:
        for engine in engines:
            await engine.aclose()


def main() -> None:
    spec, ready = sys.argv[1:]
    asyncio.run(run(msgspec.json.decode(spec, type=Fleet), Path(ready)))


if __name__ == "__main__":
    main()
