"""The command line of the simulator, ``python -m loadtest.simulator``.

`app` and `run` are what the router's own command mounts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import typer
import zmq
from typer.exceptions import Abort, TyperException

from loadtest.simulator.local import RunningEngine, start_engines
from loadtest.simulator.server import describe
from loadtest.simulator.settings import EngineConfig, Faults, SimulatorConfigError

_NO_LISTENING = {
    errno.EADDRINUSE: "port: it is in use on {host}; stop what listens there, or give another --port (0: free ones)",
    errno.EADDRNOTAVAIL: "host: {host} is not an address of this machine; give one that is, like 127.0.0.1",
    errno.ENODEV: "host: KV events cannot be published on {host}; give an address in numbers, like 127.0.0.1",
    errno.EACCES: "port: that port is not for everybody; give a --port above 1023",
    errno.EINVAL: "host: KV events cannot be published on {host}; give an address in numbers, like 127.0.0.1",
}
"""What stands in the way of a listening socket, by error number, and the mend."""

app = typer.Typer(add_completion=False, help="Simulated vLLM engines: HTTP, KV events and hand-offs without a GPU.")


def plan(config: EngineConfig, count: int) -> list[EngineConfig]:
    """The configurations of `count` engines: consecutive ports from the first, or free ones."""
    if count < 1:
        raise SimulatorConfigError(f"count: {count} engines cannot run; give at least 1")
    configs = []
    for i in range(count):
        if config.port and config.port + i > 65535:
            raise SimulatorConfigError(f"port: {count} engines from {config.port} on need ports above 65535")
        port = config.port + i if config.port else 0
        events = config.kv_events_port + i * config.dp_size if config.kv_events_port else 0
        configs.append(msgspec.structs.replace(config, port=port, kv_events_port=events))
    return configs


async def serve(configs: Sequence[EngineConfig]) -> int:
    """Run engines until SIGINT or SIGTERM, or until all of them died; the exit status (1 after a death)."""
    running = await start_engines(configs)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stop.set)
    for engine in running:
        shown = describe(engine.engine)
        events = ",".join(map(str, shown["events"])) or "off"
        typer.echo(f"{shown['url']} role={shown['role']} model={shown['model']} kv-events={events} ready")
    deaths = asyncio.create_task(_all_dead(running))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((deaths, stopped), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(engine.stop() for engine in running))
        return 0 if stop.is_set() else 1
    finally:
        for task in (deaths, stopped):
            task.cancel()
        await asyncio.gather(deaths, stopped, return_exceptions=True)
        for engine in running:
            await engine.aclose()


async def _all_dead(running: Sequence[RunningEngine]) -> None:
    for engine in running:
        await engine.dead.wait()


def run(config: EngineConfig, count: int = 1) -> int:
    """`serve` on a loop of its own, with uvloop where there is one."""
    with contextlib.suppress(ImportError):
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(plan(config, count)))
    return asyncio.run(serve(plan(config, count)))


def _faults(text: str | None) -> Faults:
    try:
        return msgspec.json.decode(text or "{}", type=Faults)
    except msgspec.DecodeError as error:
        why = str(error).rstrip(".")
        raise SimulatorConfigError(f"--faults: {why}; give a JSON object such as '{{\"error_rate\": 0.1}}'") from None


def _why(error: Exception, host: str) -> str:
    """One sentence with the mend."""
    if isinstance(error, SimulatorConfigError):
        return str(error)
    if isinstance(error, socket.gaierror):
        return f"host: {host} is no such host; give an address of this machine, like 127.0.0.1"
    number = error.errno if isinstance(error, OSError | zmq.ZMQError) else None
    known = _NO_LISTENING.get(number or 0)
    if known is not None:
        return known.format(host=host)
    return f"the engines cannot start ({os.strerror(number).lower() if number else type(error).__name__}); see --help"


@app.command()
def sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="First port; the next engines take the next ones. 0: free ports.")] = 8100,
    count: Annotated[int, typer.Option(help="Number of engines.")] = 1,
    role: Annotated[
        Literal["prefill", "decode", "both"], typer.Option(help="Named in hand-offs and ready lines.")
    ] = "both",
    model: Annotated[str, typer.Option(help="Served model name.")] = "sim-model",
    alias: Annotated[list[str] | None, typer.Option(help="Another served name; may be repeated.")] = None,
    profile: Annotated[str, typer.Option(help="Engine profile, a YAML file with one, or FILE:NAME.")] = "demo",
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 16,
    num_gpu_blocks: Annotated[int | None, typer.Option(help="Blocks in the cache; default: the profile's.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most running requests; default: the profile's.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Most tokens in a step.")] = None,
    max_num_queued_reqs: Annotated[int | None, typer.Option(help="More requests in flight are answered 503.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Longest prompt and answer together.")] = None,
    kv_events: Annotated[bool, typer.Option(help="Publish KV events.")] = True,
    kv_events_port: Annotated[int, typer.Option(help="First event port (replay: 1000 above). 0: free ports.")] = 0,
    dp_size: Annotated[int, typer.Option(help="Data-parallel ranks in each engine.")] = 1,
    lora: Annotated[list[str] | None, typer.Option(help="A LoRA adapter; may be repeated.")] = None,
    api_key: Annotated[str | None, typer.Option(help="Key that /v1 asks for.")] = None,
    speed: Annotated[float, typer.Option(help="How much faster than real time the engines run.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Engines of one seed answer alike.")] = 0,
    transfer_base_ms: Annotated[float, typer.Option(help="Transfer time of any hand-off.")] = 5.0,
    transfer_ms_per_token: Annotated[float, typer.Option(help="Transfer time of a hand-off for each token.")] = 0.005,
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds that running answers get at the end.")] = 0.0,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder with tokenizer.json; default: a small one of our own.")
    ] = None,
    faults: Annotated[str | None, typer.Option(help="Misbehaviour as JSON, as for POST /sim/faults.")] = None,
) -> None:
    """Run simulated vLLM engines."""
    try:
        config = EngineConfig(
            host=host[1:-1] if host.startswith("[") and host.endswith("]") else host,
            port=port,
            role=role,
            model=model,
            aliases=tuple(alias or ()),
            loras=tuple(lora or ()),
            profile=profile,
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_queued_reqs=max_num_queued_reqs,
            max_model_len=max_model_len,
            kv_events=kv_events,
            kv_events_port=kv_events_port,
            dp_size=dp_size,
            api_key=api_key,
            speed=speed,
            seed=seed,
            transfer_base_ms=transfer_base_ms,
            transfer_ms_per_token=transfer_ms_per_token,
            shutdown_timeout_s=shutdown_timeout,
            tokenizer=tokenizer,
            faults=_faults(faults),
        )
        status = run(config, count)
    except (SimulatorConfigError, OSError, zmq.ZMQError) as error:
        typer.echo(f"kvrouter sim: {_why(error, host)}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(status)


def main(arguments: Sequence[str]) -> int:
    """The command, without leaving the process. Returns the exit code; bad input is one sentence and 2."""
    try:
        code = app(list(arguments), prog_name="python -m loadtest.simulator", standalone_mode=False)
    except TyperException as error:
        typer.echo(f"kvrouter sim: {' '.join(error.format_message().split())}", err=True)
        return 2
    except (Abort, KeyboardInterrupt):
        return 130
    return code if isinstance(code, int) else 0
