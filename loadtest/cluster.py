"""Simulated engines and a router in processes of their own, on free loopback ports, for as long as a block runs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from loadtest.demo.children import Child, ChildFailed
from loadtest.ports import free_ports

_START_S = 60.0
_STOP_S = 10.0


class Cluster(NamedTuple):
    """What listens."""

    router: str
    """http://host:port"""
    engines: tuple[str, ...]


@contextmanager
def cluster(count: int, simulator: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Cluster]:
    """`count` engines under `simulator` (flags of `kvrouter sim`) behind a router under `config` (its YAML).

    Raises `ChildFailed` when something does not come up.
    """
    port = free_ports(count + 1)
    engines = tuple(f"http://127.0.0.1:{port + number}" for number in range(count))
    router = f"http://127.0.0.1:{port + count}"
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in simulator.items()]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-")))
        file = folder / "router.yaml"
        file.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
        sim = ["router", "sim", "--count", str(count), "--port", str(port), *flags]
        wait_for(start_child(stack, "engines", sim, folder), [f"{engine}/health" for engine in engines])
        serve = ["router", "serve", *engines, "--config", str(file), "--port", str(port + count)]
        wait_for(start_child(stack, "router", serve, folder), [f"{router}/ready"])
        yield Cluster(router, engines)


def start_child(stack: ExitStack, name: str, arguments: Sequence[str], folder: Path) -> Child:
    """``python -m ARGUMENTS...``, ended with `stack`."""
    child = Child(name, arguments, os.environ, folder)
    stack.callback(child.stop, _STOP_S)
    return child


def wait_for(child: Child, urls: Sequence[str], timeout_s: float = _START_S) -> None:
    """Until every address answers 200. Raises `ChildFailed` when the process ends or the time does."""
    deadline = time.monotonic() + timeout_s
    for url in urls:
        while not answers(url):
            child.check()
            if time.monotonic() > deadline:
                raise ChildFailed(
                    f"the {child.name} did not come up within {timeout_s:g} s; it said last:\n{child.tail()}"
                )
            time.sleep(0.05)


def answers(url: str) -> bool:
    """Whether that address answers 200."""
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
