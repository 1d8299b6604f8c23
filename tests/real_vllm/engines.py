"""Real vLLM servers as the tests need them: started on free ports, warmed up, stopped whatever happens.

Not asynchronous on purpose: an engine outlives the event loop of any one test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from loadtest.ports import free_ports
from tests.real_vllm.build import CACHE, ENGINE_PYTHON, MODEL

NAME = "tiny"
BLOCK = 32
START_S = 600.0
"""Two cores shared with whatever else runs: 25 s alone, minutes beside a full test run."""
STOP_S = 20.0


class Spec(NamedTuple):
    """One server's configuration. Its ports are its own for good, so that it can come back under the same address."""

    name: str
    arguments: tuple[str, ...] = ()
    blocks: int = 200
    ranks: int = 1
    events: bool = True
    environment: tuple[tuple[str, str], ...] = ()


class Engine:
    """One vLLM server. `start` returns at once; `ready` waits until it answers."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.port, self.events_port, self.replay_port, self.side_channel = (free_ports(spec.ranks) for _ in range(4))
        self.url = f"http://127.0.0.1:{self.port}"
        self.id = f"127.0.0.1:{self.port}"
        self.log = CACHE / "logs" / f"{spec.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [ENGINE_PYTHON.with_name("vllm"), "serve", MODEL, *self._arguments()],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def ready(self) -> None:
        """Returns when it serves and has served. Raises RuntimeError with the end of its log."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=5, trust_env=False).status_code == 200:
                    self._warm_up()
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise RuntimeError(f"the engine {self.spec.name} did not start; its log ends:\n{self.log_end()}")

    def log_end(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to it and to all that it started: as a crashed node."""
        if self._process is not None:
            _signal_group(self._process, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        if self._process is None:
            return
        _signal_group(self._process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def freeze(self) -> None:
        if self._process is not None:
            _signal_group(self._process, signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            _signal_group(self._process, signal.SIGCONT)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels, as `/metrics` has it now."""
        page = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.partition("{")[0].partition(" ")[0] == name and all(label in line for label in wanted)
        )

    def post(self, path: str, body: Any = None, **query: str) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, params=query, timeout=120, trust_env=False)

    def _warm_up(self) -> None:
        # The first request compiles, and so does the first that asks for logprobs.
        for rank in range(self.spec.ranks):
            httpx.post(
                f"{self.url}/v1/completions",
                json={"model": NAME, "prompt": "warm", "max_tokens": 2, "logprobs": 1},
                headers={"x-data-parallel-rank": str(rank)} if self.spec.ranks > 1 else {},
                timeout=START_S,
                trust_env=False,
            ).raise_for_status()

    def _arguments(self) -> list[str]:
        spec = self.spec
        arguments = ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(self.port)]
        arguments += ["--dtype", "float32", "--enforce-eager", "--block-size", str(BLOCK), "--max-num-seqs", "16"]
        arguments += ["--num-gpu-blocks-override", str(spec.blocks), "--enable-prompt-tokens-details"]
        # A worker within the engine's process: half a gigabyte and some seconds less.
        arguments += ["--distributed-executor-backend", "uni"]
        if spec.ranks > 1:
            arguments += ["--data-parallel-size", str(spec.ranks), "--api-server-count", "1"]
        if spec.events:
            events = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{self.events_port}",
                "replay_endpoint": f"tcp://*:{self.replay_port}",
                "topic": "kv-events",
            }
            arguments += ["--kv-events-config", json.dumps(events)]
        return [*arguments, *spec.arguments]

    def _environment(self) -> dict[str, str]:
        ours = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "UCX_TLS": "tcp,sm,self",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self.side_channel),
        }
        return {**os.environ, **ours, **dict(self.spec.environment)}


def start_all(engines: Sequence[Engine]) -> None:
    """Starts what is not running, all at once, and waits for all."""
    for engine in engines:
        if not engine.running:
            engine.start()
    for engine in engines:
        engine.ready()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
