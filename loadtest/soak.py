"""``python -m loadtest.soak``: steady load for a long time, and whether the router's memory grows with it.

Two simulated engines with KV events behind one router. Clients stream, ask for whole answers, leave in the middle and
ask for models that nobody serves; no prompt comes twice. The router's resident size is sampled against the requests
served so far, from when its caches are full and the first quarter left out, and a line fitted through it. Exit code 1
when it rises by more than ``--most`` MB in 100,000 requests, or when a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml
from rich.console import Console

from loadtest.arguments import Parser, complain, positive, whole
from loadtest.chaos.cast import MODEL, Actor
from loadtest.chaos.client import Outcome, ask, judge
from loadtest.demo.children import ChildFailed
from loadtest.ports import free_ports
from loadtest.simulator import TOKENIZER_PATH

_SAMPLE_S = 2.0
_SHOW_EVERY = 15
_WARM = 0.25
"""Share of the samples that the fit leaves out: the allocator finds its size."""
_FILLING = 5_000
_FILLING_WORDS = 700
"""Requests before the first sample, and how long they are: together more text than the tokenizer's cache of segments
keeps (32 MB), which would otherwise fill all through the run."""
_PER = 100_000
_SIMULATOR = ("--profile=instant", "--num-gpu-blocks=2000")
"""Small caches, full after some hundred requests: until an engine's cache is full, the index of it rightly grows."""


class Sample(NamedTuple):
    requests: int
    resident: int


class Fit(NamedTuple):
    """Bytes a request."""

    slope: float
    error: float
    """Standard error of the slope."""
    start: float
    requests: int
    """Between the first and the last sample of the fit."""


def fit(samples: Sequence[Sample]) -> Fit | None:
    """Least squares over what follows the warm-up; None: too few samples. PURE."""
    used = samples[int(len(samples) * _WARM) :]
    count = len(used)
    if count < 4 or used[-1].requests == used[0].requests:
        return None
    mean_x = sum(sample.requests for sample in used) / count
    mean_y = sum(sample.resident for sample in used) / count
    spread = sum((sample.requests - mean_x) ** 2 for sample in used)
    slope = sum((sample.requests - mean_x) * (sample.resident - mean_y) for sample in used) / spread
    start = mean_y - slope * mean_x
    residual = sum((sample.resident - start - slope * sample.requests) ** 2 for sample in used)
    return Fit(slope, sqrt(residual / (count - 2) / spread), start, used[-1].requests - used[0].requests)


class Load:
    """The clients."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self._port = port
        self._rng = rng
        self.outcomes: Counter[str] = Counter()
        self.over = False

    @property
    def requests(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return sum(self.outcomes[kind] for kind in (*Outcome, "wrong refusal") if kind != Outcome.COMPLETE)

    async def client(self) -> None:
        while not self.over:
            kind = self._rng.choices(("stream", "whole", "leave", "unknown"), (60, 25, 10, 5))[0]
            await getattr(self, f"_{kind}")()

    async def fill(self) -> None:
        """Until the router's caches are full."""
        while self.requests < _FILLING:
            answer = await ask(self._port, self._body(stream=False, words=_FILLING_WORDS), 60.0)
            self.outcomes[judge(answer, stream=False, tokens=8)] += 1

    async def _stream(self) -> None:
        answer = await ask(self._port, self._body(stream=True), 60.0)
        self.outcomes[judge(answer, stream=True, tokens=8)] += 1

    async def _whole(self) -> None:
        answer = await ask(self._port, self._body(stream=False), 60.0)
        self.outcomes[judge(answer, stream=False, tokens=8)] += 1

    async def _leave(self) -> None:
        await ask(self._port, self._body(stream=True, tokens=400), self._rng.uniform(0.0, 0.1))
        self.outcomes["left"] += 1

    async def _unknown(self) -> None:
        answer = await ask(self._port, self._body(stream=False, model="nobody"), 60.0)
        self.outcomes["refused" if answer.status == 404 else "wrong refusal"] += 1

    def _body(self, *, stream: bool, tokens: int = 8, model: str = MODEL, words: int = 12) -> bytes:
        text = " ".join(str(self._rng.random()) for _ in range(words))
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return msgspec.json.encode(body)


async def run(options: argparse.Namespace, folder: Path, console: Console) -> tuple[list[Sample], Load]:
    """Raises `ChildFailed`, OSError."""
    port = free_ports(3)
    engines = [
        Actor(f"engine{n}", port + n, ["router", "sim", f"--port={port + n}", *_SIMULATOR], folder) for n in range(2)
    ]
    config = folder / "router.yaml"
    settings = {
        "endpoints": [engine.url for engine in engines],
        "server": {"access_log": False},
        "tokenization": {"default": str(TOKENIZER_PATH)},
    }
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    arguments = ["router", "serve", "--config", str(config), "--port", str(port + 2)]
    router = Actor("router", port + 2, arguments, folder)
    load = Load(router.port, random.Random(options.seed))
    samples: list[Sample] = []
    try:
        for engine in engines:
            engine.launch()
        await asyncio.gather(*(engine.up("/health") for engine in engines))
        router.launch()
        await router.up("/ready")
        console.print(f"filling the caches with {_FILLING} long prompts", highlight=False)
        async with asyncio.TaskGroup() as group:
            for _ in range(options.clients):
                group.create_task(load.fill())
        async with asyncio.TaskGroup() as group:
            for _ in range(options.clients):
                group.create_task(load.client())
            await _sample(options.minutes * 60, router, load, samples, console)
            load.over = True
    finally:
        for actor in (*engines, router):
            actor.kill()
        await asyncio.gather(*(actor.gone() for actor in (*engines, router)))
    return samples, load


async def _sample(seconds: float, router: Actor, load: Load, samples: list[Sample], console: Console) -> None:
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        await asyncio.sleep(_SAMPLE_S)
        resident = router.resident_bytes()
        if resident is None:
            raise ChildFailed("the router ended by itself")
        samples.append(Sample(load.requests, resident))
        if len(samples) % _SHOW_EVERY == 0:
            console.print(
                f"{passed:5.0f} s  {load.requests} requests, {load.failed} failed, {resident / 1e6:.1f} MB",
                highlight=False,
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.soak", description="Whether memory grows under a steady load.")
    parser.add_argument("--minutes", type=positive, default=30.0)
    parser.add_argument("--clients", type=whole(1, 10_000), default=32)
    parser.add_argument("--most", type=positive, default=1.0, help="MB in 100,000 requests that are allowed")
    parser.add_argument("--seed", type=whole(0), default=1)
    options = parser.parse_args(arguments)
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="kvrouter-") as folder:
            samples, load = asyncio.run(run(options, Path(folder), console))
    except (ChildFailed, OSError) as error:
        return complain(error)
    console.print(", ".join(f"{count} {kind}" for kind, count in sorted(load.outcomes.items())), highlight=False)
    found = fit(samples)
    if found is None:
        return complain(ChildFailed("too short a run for a fit: give more --minutes"))
    slope, give = found.slope * _PER / 1e6, found.error * _PER / 1e6
    console.print(
        f"resident size = {found.start / 1e6:.1f} MB + {slope:.2f} MB (+- {give:.2f}) in {_PER} requests, "
        f"fitted over {found.requests} requests and {len(samples) - int(len(samples) * _WARM)} samples",
        highlight=False,
    )
    return 1 if slope > options.most or load.failed else 0


if __name__ == "__main__":
    sys.exit(main())
