from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from router.workers.plan import Plan
from router.workers.worker import Worker, states_page

CHILD = """
import asyncio, faulthandler, signal, sys, time
faulthandler.register(signal.SIGUSR1)
async def main():
    async def answer(reader, writer):
        if await reader.readline() == b"hang\\n":
            time.sleep(1000)
        writer.write(b"pong")
        writer.close()
    await asyncio.start_unix_server(answer, sys.argv[1])
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sys.exit, 0)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def plan() -> Plan:
    return Plan(number=1, folder="", listener=0, admin_listener=None, config=None, flags={})


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def begun(worker: Worker, path: Path) -> asyncio.Task[int]:
    """The worker's process at work, and its end."""
    running = asyncio.create_task(worker.run(plan(), asyncio.Event(), [sys.executable, "-c", CHILD, str(path)]))
    await until(path.exists)
    assert worker.state == "starting"
    worker.note_ready()
    return running


async def test_one_that_freezes_is_known_as_silent_then_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    worker = Worker(1, path, limit_s=4.0)
    assert worker.state == "down"
    running = await begun(worker, path)
    assert (worker.state, worker.accepts, await worker.ask("ping")) == ("serving", True, b"pong")
    worker.send(signal.SIGSTOP)
    await until(lambda: worker.state == "silent")
    assert not running.done()
    assert await asyncio.wait_for(running, 60) == -signal.SIGKILL
    assert worker.state == "down"
    assert "worker 1 has not answered for" in caplog.text


async def test_one_whose_loop_hangs_tells_where_it_stands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s"
    worker = Worker(1, path, limit_s=2.0)
    running = await begun(worker, path)
    assert await worker.ask("hang") is None
    assert await asyncio.wait_for(running, 60) == -signal.SIGKILL
    assert "in answer" in capfd.readouterr().err


async def test_one_that_wakes_up_in_time_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    worker = Worker(1, path, limit_s=60.0)
    running = await begun(worker, path)
    worker.send(signal.SIGSTOP)
    await until(lambda: worker.state == "silent")
    worker.send(signal.SIGCONT)
    await until(lambda: worker.state == "serving")
    worker.send(signal.SIGTERM)
    assert await asyncio.wait_for(running, 60) == 0
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_states_are_counted_all_of_them() -> None:
    page = states_page(["serving", "silent", "serving"]).decode()
    assert 'kvrouter_workers{state="serving"} 2.0\n' in page
    assert 'kvrouter_workers{state="silent"} 1.0\n' in page
    assert 'kvrouter_workers{state="down"} 0.0\n' in page
