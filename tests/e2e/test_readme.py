"""Every command in README.md is run: kvrouter's here, over simulated engines; make's by the CI script."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from loadtest.demo.children import plain_environment
from loadtest.ports import free_ports
from loadtest.redis_server import RedisServer
from tests.support.simulator import FAST, engines

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
KVROUTER = [command for command in COMMANDS if command.startswith("kvrouter ")]
MAKE = [command for command in COMMANDS if command.startswith("make ")]
REDIS = "redis://127.0.0.1:6379"
ADDRESS = re.compile(r"http://(?:10\.0\.0\.\d+|127\.0\.0\.1):\d+")


def test_the_readme_has_no_other_commands() -> None:
    assert sorted(KVROUTER + MAKE) == sorted(COMMANDS)
    assert KVROUTER
    assert MAKE


@pytest.mark.parametrize("command", [*MAKE, "make compare", "make down"])
def test_a_make_command_is_run_by_ci(command: str) -> None:
    script = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / ".ci").iterdir()) if path.is_file())
    compose = (ROOT / "tests" / "support" / "compose.py").read_text(encoding="utf-8")
    target = command.removeprefix("make ")
    typed = re.search(rf"make (?:-\S+ )*{target}\b", script) is not None or f'[*_MAKE, "{target}"' in script
    assert typed or f'self._make("{target}"' in compose


def readdressed(text: str, urls: Sequence[str]) -> str:
    """The text with these addresses, in turn, in place of its own."""
    given = {address: urls[number % len(urls)] for number, address in enumerate(dict.fromkeys(ADDRESS.findall(text)))}
    return ADDRESS.sub(lambda match: given[match[0]], text)


def arguments(command: str, urls: Sequence[str], folder: Path) -> list[str]:
    """The command's words with the engines' real addresses in place of the README's, in files that it names too."""
    words = shlex.split(readdressed(command, urls))[1:]
    for number, word in enumerate(words):
        if word.endswith(".yaml"):
            file = folder / "config.yaml"
            file.write_text(readdressed((ROOT / word).read_text(encoding="utf-8"), urls), encoding="utf-8")
            words[number] = str(file)
    return words


@pytest.mark.parametrize("command", KVROUTER)
async def test_a_kvrouter_command_works_as_written(command: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as opened:
        if REDIS in command:
            command = command.replace(REDIS, opened.enter_context(RedisServer()).url)
        await works(command, tmp_path)


async def works(command: str, folder: Path) -> None:
    async with engines(FAST, FAST, FAST) as running:
        words = arguments(command, [engine.url for engine in running], folder)
        port = free_ports(1)
        if words[0] == "serve":
            words += ["--port", str(port)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "router", *words, cwd=ROOT, env=plain_environment(), stderr=asyncio.subprocess.STDOUT,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            if words[0] == "serve":
                assert await answers(f"http://127.0.0.1:{port}") == 200
            else:
                output, _ = await asyncio.wait_for(process.communicate(), 60)
                assert process.returncode == 0, output.decode()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.communicate()


async def answers(url: str) -> int:
    body = {"model": "sim-model", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client, asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/ready")).status_code == 200:
                    return (await client.post("/v1/chat/completions", json=body)).status_code
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)
