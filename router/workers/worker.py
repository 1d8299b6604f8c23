"""One worker as its parent sees it: its process, whether it serves, and whether it still answers.

One that has served and then does not answer for `limit_s` is told to write where it stands and to end, and is killed
when it does neither. While it starts it is not watched: that may take long, and others serve meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from router.workers.hearing import hearing
from router.workers.plan import Plan
from router.workers.silence import LOOK_S, Silence
from router.workers.talk import ask

logger = logging.getLogger(__name__)

_TO_END_S = 5.0
"""What it gets to end by itself once it is told to."""

State = Literal["serving", "starting", "silent", "down"]


def states_page(states: Sequence[State]) -> bytes:
    """How many workers are in each state, as a metrics page; `states`: of each worker."""
    lines = [
        "# HELP kvrouter_workers Worker processes by state: a silent one does not answer the others",
        "# TYPE kvrouter_workers gauge",
        *(f'kvrouter_workers{{state="{state}"}} {states.count(state)}.0' for state in get_args(State)),
    ]
    return ("\n".join(lines) + "\n").encode()


class Worker:
    """One process after the other, under one number."""

    def __init__(self, number: int, socket: Path, *, limit_s: float) -> None:
        """`socket`: where it answers."""
        self.number = number
        self.ready_once = False
        self._socket = socket
        self._limit_s = limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._silence: Silence | None = None

    @property
    def state(self) -> State:
        if self._process is None or self._process.returncode is not None:
            return "down"
        if not self._ready.is_set():
            return "starting"
        return "silent" if self._silence is not None and self._silence.known else "serving"

    @property
    def running(self) -> bool:
        return self.state != "down"

    @property
    def accepts(self) -> bool:
        """It takes connections from the listener, as far as anybody knows."""
        return self.state in ("serving", "silent")

    def note_ready(self) -> None:
        """It has said that it serves."""
        self.ready_once = True
        self._ready.set()

    def send(self, number: int) -> None:
        if self.running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def ask(self, question: str) -> bytes | None:
        """None: it does not answer, or not in time."""
        return await ask(self._socket, question)

    async def run(self, plan: Plan, ending: asyncio.Event, command: Sequence[str] | None = None) -> int:
        """From the start of a process to its end. Returns its exit code, negative for a signal.

        `ending`: set when nobody is wanted any more. `command`: what is run in place of a whole router.
        """
        self._ready.clear()
        process = self._process = await asyncio.create_subprocess_exec(
            *(command or (sys.executable, "-P", "-m", "router.workers.child")),
            stdin=asyncio.subprocess.PIPE,
            pass_fds=[number for number in (plan.listener, plan.admin_listener) if number is not None],
            # Ctrl-C reaches the parent alone, which tells them.
            start_new_session=True,
        )
        assert process.stdin is not None
        watching = asyncio.create_task(self._watch(), name=f"watching worker {self.number}")
        try:
            # On standard input: flags may hold keys, and arguments can be read by anyone on the host. It stays open:
            # its end tells the worker that its parent is gone.
            process.stdin.write(msgspec.json.encode(plan) + b"\n")
            if ending.is_set():
                self.send(signal.SIGTERM)
            return await process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            self._silence = None
            if process.returncode is None:
                process.kill()
                await process.wait()
            process.stdin.close()

    async def _watch(self) -> None:
        await self._ready.wait()
        loop = asyncio.get_running_loop()
        told = False
        async with hearing(self._socket, "ping", self._limit_s) as silence:
            self._silence = silence
            while True:
                await asyncio.sleep(LOOK_S)
                silent_s = silence.look(loop.time())
                if silent_s <= self._limit_s:
                    continue
                if not told:
                    told = True
                    logger.error(
                        "worker %d has not answered for %.0f s (server.worker_timeout_s) and is ended",
                        *(self.number, silent_s),
                    )
                    self.send(signal.SIGUSR1)
                    self.send(signal.SIGTERM)
                elif silent_s > self._limit_s + _TO_END_S:
                    self.send(signal.SIGKILL)
