"""Hearing: one question after the other to a process on this host, for as long as each answer takes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from router.workers.silence import LOOK_S, Silence
from router.workers.talk import ask


@contextlib.asynccontextmanager
async def hearing(path: Path, question: str, limit_s: float) -> AsyncIterator[Silence]:
    """How long whoever answers at `path` has been silent, kept while it is entered; somebody must look.

    A question waits up to `limit_s`: whoever is merely slow, on a machine that is merely busy, is heard in the end.
    """
    loop = asyncio.get_running_loop()
    silence = Silence(loop.time())

    async def listen() -> None:
        while True:
            if await ask(path, question, limit_s):
                silence.heard(loop.time())
            await asyncio.sleep(LOOK_S)

    listening = asyncio.create_task(listen(), name=f"hearing {path.name}")
    try:
        yield silence
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
