"""`kvrouter demo`: what it prints works as pasted, both kinds of decision are seen, and nothing is left behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.demo.children import plain_environment
from loadtest.demo.status import read_status
from loadtest.ports import free_ports

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(180)


class Demo:
    """A running demonstration and what it has printed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.printed: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "router", "demo", "--port", str(port), "--speed", "4"],
            cwd=ROOT,
            env=plain_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.printed.append(line)
                if "stop: Ctrl-C" in line:
                    self.ready.set()
        self.ready.set()

    @property
    def text(self) -> str:
        return "".join(self.printed)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(60)
        self._reader.join()
        return code


@pytest.fixture
def demo() -> Iterator[Demo]:
    running = Demo(free_ports(1))
    try:
        assert running.ready.wait(120)
        assert running.process.poll() is None, running.text
        yield running
    finally:
        if running.process.poll() is None:
            running.end(signal.SIGTERM)


def test_what_it_prints_works_as_pasted_and_it_ends_clean(demo: Demo) -> None:
    snippet = demo.text[demo.text.index("from openai import OpenAI") : demo.text.index("Metrics: ")]
    pasted = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, timeout=90, check=False)
    assert pasted.returncode == 0, pasted.stderr
    cached = [int(number) for number in re.findall(r"cached_tokens=(\d+)", pasted.stdout)]
    assert len(cached) == 2
    assert cached[1] > 0, "the second turn found nothing of the first"

    (curl,) = [line for line in demo.text.splitlines() if line.startswith("curl ")]
    words = shlex.split(curl)
    with httpx.stream(
        "POST",
        words[2],
        headers={"content-type": "application/json"},
        content=words[words.index("-d") + 1],
        timeout=60,
        trust_env=False,
    ) as answer:
        assert answer.status_code == 200
        assert answer.read().rstrip().endswith(b"data: [DONE]")

    page = httpx.get(f"http://127.0.0.1:{demo.port}/metrics", timeout=10, trust_env=False).text
    status = read_status(page)
    assert (status.requests, status.failed) == (3, 0)
    assert status.matched_tokens > 0
    assert 0 < status.disaggregated < status.requests
    assert set(status.inflight) == {"prefill-0", "prefill-1", "decode-0", "decode-1"}
    assert not any(status.inflight.values())

    children = _children(demo.process.pid)
    assert len(children) == 2
    assert demo.end(signal.SIGINT) == 0
    assert "Traceback" not in demo.text
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    with socket.create_server(("127.0.0.1", demo.port)):
        pass


def _children(pid: int) -> list[int]:
    """Its processes, where there is a /proc that tells."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if not listed.exists():
        pytest.skip("no /proc to look for children in")
    return [int(word) for word in listed.read_text(encoding="utf-8").split()]


def test_it_says_so_when_one_of_its_processes_ends(demo: Demo) -> None:
    os.kill(_children(demo.process.pid)[0], signal.SIGKILL)
    assert demo.wait() == 1
    assert "ended by itself (exit code -9)" in demo.text
