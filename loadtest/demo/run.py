"""The demonstration from start to end: engines, router, what to type, and a live line until it is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtest.demo.children import Child, ChildFailed, plain_environment
from loadtest.demo.engines import Fleet, Role
from loadtest.demo.status import Status, read_status
from loadtest.demo.steps import Steps
from loadtest.simulator.settings import TOKENIZER_PATH, EngineConfig, find_profile

HOST = "127.0.0.1"
MODEL = EngineConfig().model
UNCACHED_TOKENS = 128
"""From so many uncached prompt tokens on a prompt is prefilled apart: below it stays a short question, above it goes
what the printed example sends."""

_START_S = 90.0
_STOP_S = 6.0
_LIVE_S = 0.5
_LINE_S = 5.0


class DemoError(Exception):
    """The demonstration cannot start as asked; the message is one sentence with the mend."""


class Stopped(Exception):
    """Asked to stop while starting."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    port: int = 8000
    prefill: int = 2
    decode: int = 2
    speed: float = 1.0
    autoscale: bool = False
    """The router starts and drains the engines, as its planner wants."""
    most: int = 8
    """Engines of a role, at the most, when it does."""
    requests: str | None = None
    """File that the router records requests in."""

    @property
    def roles(self) -> tuple[Role, ...]:
        serving: Role = "decode" if self.prefill else "both"
        roles: list[Role] = ["prefill"] * self.prefill
        return (*roles, *[serving] * self.decode)


def run_demo(options: Options, console: Console) -> int:
    """Blocks until SIGINT or SIGTERM (0) or a process's unexpected end (1). Raises `DemoError`."""
    require_free(options.port)
    with _stop_on_signal() as stop, tempfile.TemporaryDirectory(prefix="kvrouter-demo-") as name:
        folder = Path(name)
        children: list[Child] = []
        try:
            console.print("starting the engines and the router ...", highlight=False)
            _start(options, folder, children, stop)
            console.print(what_to_type(options.port), markup=False, highlight=False, soft_wrap=True)
            _show_status(options.port, children, stop, console)
        except Stopped:
            return 0
        except ChildFailed as failure:
            console.print(f"kvrouter demo: {failure}", markup=False, highlight=False, soft_wrap=True)
            return 1
        finally:
            # The router first: it lets running streams end while their engines still live.
            for child in reversed(children):
                child.stop(_STOP_S)
    console.print("stopped", highlight=False)
    return 0


def require_free(port: int) -> None:
    """Raises `DemoError` when something listens on the port."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        why = os.strerror(error.errno or 0).lower()
        raise DemoError(
            f"port {port} on {HOST} cannot be had ({why}): "
            "stop what listens there, or give another --port (make demo PORT=8001)"
        ) from None


def router_config(options: Options, urls: Sequence[str]) -> dict[str, Any]:
    """The router's configuration, as it would stand in a file."""
    roles = options.roles
    names = [f"{role}-{roles[:i].count(role)}" for i, role in enumerate(roles)]
    # Of streams that do not tell their usage a replay would not know how long they were.
    recorded = {"log": {"requests": options.requests}, "usage": {"inject_stream_usage": True}}
    return {
        **(recorded if options.requests is not None else {}),
        "server": {"host": HOST, "port": options.port, "shutdown_grace_s": 2, "access_log": False},
        "endpoints": [
            {"url": url, "role": role, "name": name} for url, role, name in zip(urls, roles, names, strict=True)
        ],
        "tokenization": {"default": str(TOKENIZER_PATH)},
        "scheduling": {
            "plugins": [{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": UNCACHED_TOKENS}}],
            "decider": "prefix-based-pd-decider",
        },
    }


def autoscaled_config(options: Options, variants: Path) -> dict[str, Any]:
    """The router's configuration when it starts the engines itself; none are there at the beginning."""
    command = [sys.executable, "-m", "loadtest.demo.leash", "loadtest.simulator", "--port", "{port}"]
    command += ["--role", "{role}", "--speed", f"{options.speed:g}", "--shutdown-timeout", "5"]
    return {
        **router_config(msgspec.structs.replace(options, prefill=0, decode=0), ()),
        "pool": {"probe_interval_s": 1},
        "capacity": {
            "planner": True,
            "actuator": "local",
            "local_command": command,
            "variants_file": str(variants),
            "interval_s": 5,
            "min_engines": 1,
            "max_engines": options.most,
            "form": "disaggregated" if options.prefill else "aggregated",
            "stabilization_s": 45,
            "tpot_slo_s": 0.05 / options.speed,
            "ttft_slo_s": 2.0 / options.speed,
        },
    }


def demo_variant(options: Options) -> dict[str, Any]:
    """The demonstration's engine as an operator would write it down."""
    profile = find_profile(EngineConfig().profile)
    return {
        "name": "demo",
        "cost_per_hour": 1.0,
        "startup_s": 10.0,
        "kv_tokens": profile.kv_tokens,
        "max_seqs": profile.max_seqs,
        "laws": {
            "overhead_s": 0.005 / options.speed,
            "token_s": 1 / profile.prefill_tokens_per_s / options.speed,
            "pair_s": profile.attention_s / options.speed,
            "step_base_s": profile.step_s / options.speed,
            "step_seq_s": profile.per_seq_s / options.speed,
            "step_kv_s": profile.per_kv_token_s / options.speed,
            "chunk": profile.chunk,
        },
    }


def what_to_type(port: int) -> str:
    """A curl line and an openai-python snippet, complete and ready to paste."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 40,
        "stream": True,
    }
    return f"""
The router listens on http://{HOST}:{port}/v1 with model {MODEL}. In another terminal:

curl -N http://{HOST}:{port}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'

or in Python (pip install openai):

{snippet(port)}
Metrics: http://{HOST}:{port}/metrics   engines: http://{HOST}:{port}/debug/endpoints   stop: Ctrl-C
"""


def snippet(port: int) -> str:
    """Two turns of a conversation: the first prompt is long enough to be prefilled apart, the second is cached."""
    return f"""\
from openai import OpenAI

client = OpenAI(base_url="http://{HOST}:{port}/v1", api_key="unused")
messages = [{{"role": "user", "content": "Tell me what you know about rivers. " * 40}}]
for turn in range(2):
    answer = ""
    for chunk in client.chat.completions.create(
        model="{MODEL}", messages=messages, max_tokens=60, stream=True, stream_options={{"include_usage": True}}
    ):
        for choice in chunk.choices:
            answer += choice.delta.content or ""
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            print("\\n", chunk.usage.prompt_tokens, "prompt tokens,", chunk.usage.prompt_tokens_details)
    messages += [{{"role": "assistant", "content": answer}}, {{"role": "user", "content": "Go on."}}]
"""


def _start(options: Options, folder: Path, children: list[Child], stop: threading.Event) -> None:
    """Both processes, up and ready, into `children`. Raises `ChildFailed`, `Stopped`."""
    environ = plain_environment()
    if options.autoscale:
        variants = folder / "variants.yaml"
        variants.write_bytes(msgspec.json.encode({"variants": [demo_variant(options)]}))
        _start_router(options, autoscaled_config(options, variants), folder, children, stop)
        return
    ready = folder / "ready.json"
    fleet = msgspec.json.encode(Fleet(roles=options.roles, speed=options.speed)).decode()
    engines = Child("engines", ["loadtest.demo.engines", fleet, str(ready)], environ, folder)
    children.append(engines)
    _wait(ready.exists, engines, stop)
    urls: list[str] = msgspec.json.decode(ready.read_bytes(), type=list[str])
    _start_router(options, router_config(options, urls), folder, children, stop)


def _start_router(
    options: Options, config: dict[str, Any], folder: Path, children: list[Child], stop: threading.Event
) -> None:
    path, environ = folder / "kvrouter.yaml", plain_environment()
    path.write_bytes(msgspec.json.encode(config))
    router = Child("router", ["router", "serve", "--config", str(path)], environ, folder)
    children.append(router)
    with httpx.Client(base_url=f"http://{HOST}:{options.port}", timeout=1.0, trust_env=False) as client:
        _wait(lambda: _answers(client), router, stop)


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def _wait(condition: Callable[[], bool], child: Child, stop: threading.Event) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        child.check()
        if stop.wait(0.05):
            raise Stopped
        if time.monotonic() > deadline:
            raise ChildFailed(f"the {child.name} did not come up within {_START_S:g} s; it said last:\n{child.tail()}")


def _show_status(port: int, children: Sequence[Child], stop: threading.Event, console: Console) -> None:
    """Until `stop`: one line that is written over on a terminal, a line now and then elsewhere."""
    steps = Steps()
    with httpx.Client(base_url=f"http://{HOST}:{port}", timeout=2.0, trust_env=False) as client:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, transient=True) as live:
                while not stop.wait(_LIVE_S):
                    _show_steps(steps, client, console)
                    live.update(Text(_status_line(client)), refresh=True)
                    _check(children)
        else:
            while not stop.wait(_LINE_S):
                _show_steps(steps, client, console)
                console.print(_status_line(client), markup=False, highlight=False, soft_wrap=True)
                _check(children)


def _show_steps(steps: Steps, client: httpx.Client, console: Console) -> None:
    for line in steps.new(client):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _check(children: Sequence[Child]) -> None:
    for child in children:
        child.check()


def _status_line(client: httpx.Client) -> str:
    status = _status(client)
    return "the router does not answer" if status is None else status.line()


def _status(client: httpx.Client) -> Status | None:
    try:
        answer = client.get("/metrics")
    except httpx.TransportError:
        return None
    return read_status(answer.text) if answer.status_code == 200 else None


@contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and a closed terminal set, in place of what they would do."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield stop
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
