"""Solver: the planning process, asked with a time-out, ended and begun anew when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence

import msgspec

from router.capacity.plan import PoolView
from router.planning.child import LACKS
from router.planning.messages import HEAD_BYTES, Asked, Said, framed

logger = logging.getLogger(__name__)

_FIRST_S = 30.0
"""More for the first answer: the solver's libraries are loaded."""

_END_S = 1.0


class NoPlan(Exception):
    """No answer in time, or none at all; the last plan stays in force."""


class Solver:
    def __init__(self, timeout_s: float, command: Sequence[str] = ("-m", "router.planning.child")) -> None:
        self._timeout_s = timeout_s
        self._command = command
        self._process: Process | None = None
        self._number = 0

    async def plan(self, now: float, views: Sequence[PoolView], quotas: Mapping[str, int]) -> Said:
        """Raises `NoPlan`."""
        fresh = self._process is None
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._command, stdin=PIPE, stdout=PIPE
            )
        self._number += 1
        try:
            async with asyncio.timeout(self._timeout_s + (_FIRST_S if fresh else 0.0)):
                return await self._ask(self._process, Asked(self._number, now, views, quotas))
        except TimeoutError:
            await self.aclose()
            raise NoPlan(f"the solver took longer than capacity.timeout_s, {self._timeout_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            raise NoPlan(await self._why(error)) from None
        except asyncio.CancelledError:
            await self.aclose()
            raise

    async def _why(self, error: Exception) -> str:
        """What became of the process, which is ended where it has not."""
        process = self._process
        if process is not None and isinstance(error, asyncio.IncompleteReadError | ConnectionError):
            # It has closed its output, so it has ended or is about to.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await process.wait()
        code = None if process is None else process.returncode
        await self.aclose()
        if code == LACKS:
            return "scipy or numpy cannot be imported: pip install 'kvrouter[planner]'"
        if code is not None:
            return f"the solver's process ended with exit code {code}"
        return f"the solver's answer could not be read: {type(error).__name__}"

    async def _ask(self, process: Process, asked: Asked) -> Said:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(framed(asked))
        await process.stdin.drain()
        size = int.from_bytes(await process.stdout.readexactly(HEAD_BYTES), "big")
        said = msgspec.msgpack.decode(await process.stdout.readexactly(size), type=Said)
        if said.number != asked.number:
            raise OSError("an answer to another question")
        return said

    async def aclose(self) -> None:
        """Ends the process. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
