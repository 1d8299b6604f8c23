from __future__ import annotations

import asyncio
from pathlib import Path

from router.workers.talk import Answerer, ask


async def test_a_question_is_answered_and_another_one_is_not(tmp_path: Path) -> None:
    async def long(_: str) -> bytes:
        return b"x" * 300_000

    answerer = Answerer(tmp_path / "s", {"long": long})
    await answerer.start()
    assert await ask(tmp_path / "s", "long") == b"x" * 300_000
    assert await ask(tmp_path / "s", "what") == b""
    await answerer.aclose()
    assert await ask(tmp_path / "s", "long") is None


async def test_whoever_does_not_answer_in_time_is_not_waited_for(tmp_path: Path) -> None:
    async def never(_: str) -> bytes:
        await asyncio.sleep(60)
        return b""

    answerer = Answerer(tmp_path / "s", {"never": never})
    await answerer.start()
    assert await ask(tmp_path / "s", "never") is None
    await answerer.aclose()
