"""`kvrouter serve` as a process of its own, for what only a process shows: signals, memory, exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from loadtest.demo.children import plain_environment

ROOT = Path(__file__).parents[2]
_START_S = 180.0


class ServedRouter:
    def __init__(self, client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
        self.client = client
        self.process = process
        self.log = ""

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * 4096

    def open_files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    async def follow(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()


@asynccontextmanager
async def serving(
    config: Path, urls: Sequence[str], server: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[ServedRouter]:
    """`config`: where its file is written; `server` and `sections` are what the file says besides the endpoints."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = {
        "server": {"port": port, "access_log": False, **(server or {})},
        "endpoints": list(urls),
        "tokenization": {"remote": False},
        **sections,
    }
    config.write_text(json.dumps(settings), encoding="utf-8")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60, limits=limits
    ) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "serve", "--config", str(config)),
            cwd=ROOT,
            env=plain_environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        served = ServedRouter(client, process)
        following = asyncio.create_task(served.follow())
        try:
            await _ready(served)
            yield served
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await following


async def _ready(served: ServedRouter) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            assert served.process.returncode is None, served.log
            try:
                if (await served.client.get("/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
