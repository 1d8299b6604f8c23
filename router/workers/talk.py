"""How workers and their parent speak: one question a connection on a unix socket, one answer, both bounded in time.

A question is one line, an answer is what comes before the connection closes. Between processes of one user on one host:
the folder that holds the sockets is theirs alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

TIMEOUT_S = 1.0
THROUGH_S = 2 * TIMEOUT_S
"""For an answer for which others must be asked first."""
_ANSWER_BYTES = 64 << 20


async def ask(path: Path, question: str, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """None: nobody answers, or not in time."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"{question}\n".encode())
                pieces, size = [], 0
                while piece := await reader.read(1 << 16):
                    size += len(piece)
                    if size > _ANSWER_BYTES:
                        return None
                    pieces.append(piece)
                return b"".join(pieces)
            finally:
                writer.close()
    except OSError:
        # TimeoutError is an OSError.
        return None


class Answerer:
    """Answers questions on a unix socket until `aclose`."""

    def __init__(self, path: Path, answers: Mapping[str, Callable[[str], Awaitable[bytes]]]) -> None:
        """`answers`: by a question's first word; each is given the rest of the line."""
        self._path = path
        self._answers = answers
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._answer, self._path)

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(THROUGH_S + TIMEOUT_S):
                question = (await reader.readline()).decode("utf-8", "replace").strip()
                word, _, rest = question.partition(" ")
                answer = self._answers.get(word)
                if answer is not None:
                    writer.write(await answer(rest))
                    await writer.drain()
        except (OSError, ValueError):
            # Whoever asked has gone, or asked nothing in time.
            return
        finally:
            writer.close()
