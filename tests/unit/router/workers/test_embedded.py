from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
import redis

from kvindex.redis_address import parse_address
from router.errors import ConfigError
from router.workers.embedded import EmbeddedValkey
from router.workers.folder import meeting_place


def test_its_folder_may_have_any_name() -> None:
    with meeting_place(["/tmp"]) as short:
        folder = short / 'a "b'
        folder.mkdir()
        embedded = EmbeddedValkey(folder)
        embedded.start()
        try:
            client = redis.Redis(unix_socket_path=parse_address(embedded.url).path)
            assert client.ping()
            client.close()
            assert embedded.running
        finally:
            embedded.stop()
        assert not embedded.running


def test_why_it_does_not_start_is_told(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 110)
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"does not start on this machine \(.*\): name a Redis with redis.url") as why:
        EmbeddedValkey(folder).start()
    assert "nothing came from it" not in str(why.value)


def servers_in(folder: Path) -> list[int]:
    """Process ids of the servers that work there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder and b"valkey-server" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="needs /proc to find the server")
@pytest.mark.parametrize(("number", "said"), [(signal.SIGSTOP, "does not answer"), (signal.SIGKILL, "ended")])
async def test_one_that_ends_or_freezes_is_started_again(
    number: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    ending = asyncio.Event()
    with meeting_place(["/tmp"]) as folder:
        embedded = EmbeddedValkey(folder)
        embedded.start()
        keeping = asyncio.create_task(embedded.keep(ending, 3.0))
        try:
            async with asyncio.timeout(60):
                while not servers_in(folder):
                    await asyncio.sleep(0.05)
                (first,) = servers_in(folder)
                os.kill(first, number)
                while not servers_in(folder) or first in servers_in(folder):
                    await asyncio.sleep(0.05)
            client = redis.Redis(unix_socket_path=str(folder / "valkey.sock"))
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(redis.ConnectionError):
                        assert client.ping()
                        break
                    await asyncio.sleep(0.05)
            client.close()
            assert f"the embedded Valkey {said} and is started again" in caplog.text
        finally:
            ending.set()
            await keeping
            embedded.stop()
