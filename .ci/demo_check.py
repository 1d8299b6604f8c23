"""The README's interactive commands as a user types them.

`make demo`, a streamed chat through it, `make loadtest` against it, Ctrl-C. Fails when the demo does not come up,
answers wrongly, does not end, or leaves something behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

_MAKE = ["make", "--no-print-directory"]
_BODY = {
    "model": "sim-model",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 4,
    "stream": True,
}


class CheckFailed(Exception):
    pass


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def check(demo: subprocess.Popen[bytes], url: str, port: int) -> None:
    deadline = time.monotonic() + 120
    while not ready(url):
        if demo.poll() is not None or time.monotonic() > deadline:
            raise CheckFailed("make demo did not come up")
        time.sleep(0.3)
    answer = httpx.post(f"{url}/v1/chat/completions", json=_BODY, timeout=60, trust_env=False)
    if answer.status_code != 200 or not answer.text.endswith("data: [DONE]\n\n"):
        raise CheckFailed(f"the demo answered {answer.status_code} and no whole stream")
    if subprocess.run([*_MAKE, "loadtest", f"PORT={port}"], check=False).returncode:
        raise CheckFailed("make loadtest failed")
    os.killpg(demo.pid, signal.SIGINT)
    try:
        demo.wait(30)
    except subprocess.TimeoutExpired:
        raise CheckFailed("Ctrl-C did not end make demo") from None
    if ready(url):
        raise CheckFailed(f"something still answers on {url} after Ctrl-C")


def main() -> int:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "demo.log"
        with log.open("wb") as output:
            # A session of its own: the interrupt then reaches the whole command, as Ctrl-C in a terminal does.
            demo = subprocess.Popen(
                [*_MAKE, "demo", f"PORT={port}"], stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            check(demo, f"http://127.0.0.1:{port}", port)
        except CheckFailed as failure:
            sys.stderr.write(f"{log.read_text(errors='replace')[-4000:]}\nerror: {failure}\n")
            return 1
        finally:
            if demo.poll() is None:
                os.killpg(demo.pid, signal.SIGKILL)
                demo.wait()
    sys.stdout.write("make demo and make loadtest: as the README says\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
