"""The `kvrouter` command: serve | check | explain | plan | demo | sim | replay | hash-key | version.

Bad input of any kind is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from typer.exceptions import Abort, TyperException

from router import plain_yaml
from router.errors import ConfigError
from router.flags import Config, Decode, Prefill, Redis, Tokenizer, Urls, hashed, settings_flags, split_targets
from router.outputs import trouble
from router.reload import SettingsLoader
from router.settings import Settings, dump
from router.settings.expected import expected
from router.settings.keys import sendable

BAD_INPUT = 2
INTERRUPTED = 130
"""By Ctrl-C, as shells count it."""

app = typer.Typer(
    name="kvrouter",
    help="A KV-cache-aware HTTP router for LLM inference over vLLM engines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.command()
def serve(
    urls: Urls = None,
    prefill: Prefill = None,
    decode: Decode = None,
    config: Config = None,
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", show_default="127.0.0.1", help="Address to listen on.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", show_default="8000", help="Port to listen on.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", show_default="1", help="Router processes; they share an embedded Valkey, or --redis."
        ),
    ] = None,
    redis: Redis = None,
    tokenizer: Tokenizer = None,
    api_key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Key that clients must send; may be repeated.")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", show_default="info", help="debug, info, warning or error.")
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the settings in force, secrets masked, and stop.")
    ] = False,
) -> None:
    """Route OpenAI requests over the engines at the URLs, or over those that the configuration names.

    Settings are taken from the YAML file, then the environment (KVROUTER_SERVER__PORT=9000), then these flags.
    """
    flags = settings_flags(
        {
            "server.host": host,
            "server.port": port,
            "server.workers": workers,
            "server.api_keys": api_key and [hashed(key) for key in api_key],
            "tokenization.default": tokenizer,
            "log.level": log_level,
        },
        urls,
        prefill,
        decode,
        redis,
    )
    loader = SettingsLoader(config, flags)
    settings = loader()
    if print_config:
        # Imported here so that `kvrouter --help` and `version` need not load the whole server.
        from router.preflight import preflight

        preflight(settings)
        typer.echo(plain_yaml.dump(dump(settings)), nl=False)
        return
    raise typer.Exit(_serve(settings, loader))


@app.command("check")
def check_command(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="URL|FILE", help="Engines, or one configuration file.")
    ] = None,
    prefill: Prefill = None,
    decode: Decode = None,
    config: Config = None,
    redis: Redis = None,
    tokenizer: Tokenizer = None,
) -> None:
    """Validate a configuration and ask every engine of it what the router relies on.

    Health, key, models, block size, KV events, version, and whether the local tokenizer agrees with the engine's; and
    whether the Redis named can be used.
    Exit code 0: good; 1: there is trouble; 2: bad configuration.
    """
    urls, config = split_targets(targets or [], config)
    flags = settings_flags({"tokenization.default": tokenizer}, urls, prefill, decode, redis)
    settings = SettingsLoader(config, flags)()
    raise typer.Exit(_check(settings))


@app.command()
def demo(
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The router's port.")] = 8000,
    prefill: Annotated[
        int, typer.Option(metavar="N", min=0, max=64, help="Prefill engines; 0: no disaggregation.")
    ] = 2,
    decode: Annotated[int, typer.Option(metavar="N", min=1, max=64, help="Decode engines.")] = 2,
    speed: Annotated[
        float, typer.Option(metavar="FACTOR", min=0.01, max=1000.0, help="How much faster than life the engines are.")
    ] = 1.0,
    autoscale: Annotated[
        bool, typer.Option("--autoscale", help="The router starts and drains the engines as its planner wants.")
    ] = False,
    requests: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Record the requests there, without their prompts, for kvrouter replay."),
    ] = None,
) -> None:
    """Run simulated engines and a router before them on 127.0.0.1, until Ctrl-C.

    Nothing else is needed: no GPU, no Redis, no network. Prints what to type, then a live line.
    """
    from loadtest.demo.run import DemoError, Options, run_demo

    if autoscale:
        from router.planned import need_solver

        need_solver("kvrouter demo --autoscale")
    if requests is not None and (why := trouble(requests)):
        raise ConfigError(f"--requests {requests} cannot be written ({why}): name a file in a folder of yours")
    recorded = None if requests is None else str(requests.absolute())
    options = Options(port=port, prefill=prefill, decode=decode, speed=speed, autoscale=autoscale, requests=recorded)
    try:
        code = run_demo(options, Console())
    except DemoError as error:
        raise ConfigError(str(error)) from None
    raise typer.Exit(code)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
    short_help="Run simulated engines: vLLM's HTTP surface, KV events and hand-offs, without a GPU.",
)
def sim(context: typer.Context) -> None:
    """The simulator's own command line, handed everything that follows."""
    from loadtest.simulator.cli import app as simulator

    code = simulator(context.args, prog_name="kvrouter sim", standalone_mode=False)
    raise typer.Exit(code if isinstance(code, int) else 0)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
    short_help="Replay traces of requests against routing policies, offline: what would each have given?",
)
def replay(context: typer.Context) -> None:
    """The replay's own command line, handed everything that follows."""
    from loadtest.replay.cli import app as replayer

    code = replayer(context.args, prog_name="kvrouter replay", standalone_mode=False, obj=tuple(context.args))
    raise typer.Exit(code if isinstance(code, int) else 0)


@app.command()
def explain(
    url: Annotated[str, typer.Argument(metavar="URL", help="The router.")] = "http://127.0.0.1:8000",
    body: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Body of a request, as JSON; - is standard input.")
    ] = None,
    path: Annotated[
        str | None, typer.Option(metavar="PATH", show_default="by the body's fields", help="Where it would be sent.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="NAME:VALUE", help="A header the request would have; may be repeated, as curl's."
        ),
    ] = None,
) -> None:
    """Ask a running router what it would decide for a request now, and why: every candidate's cost, term by term.

    Nothing is sent to an engine. The key, where the router wants one, is taken from KVROUTER_API_KEY.
    """
    from router.calls import header_fields, router_address
    from router.explain_call import ask, show

    address, fields = router_address(url), header_fields(header or ())
    if body is None:
        raise ConfigError("--body is missing: name a file with a request's body, like --body request.json")
    try:
        content = sys.stdin.buffer.read() if str(body) == "-" else body.read_bytes()
    except OSError as error:
        raise ConfigError(f"--body {body} cannot be read ({error.strerror}): name a file") from None
    console = Console()
    show(ask(address, content, path, fields), console if console.is_terminal else Console(width=200), fields)


@app.command()
def plan(
    context: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="The router.")] = "http://127.0.0.1:8000",
    trace: Annotated[
        list[Path] | None,
        typer.Option("--trace", "--log", metavar="FILE", help="A trace or request log; may be repeated."),
    ] = None,
    slo: Annotated[
        str, typer.Option(metavar="ttft=S,tpot=S", help="Objective, with attainment=SHARE if not 0.99.")
    ] = "ttft=2,tpot=0.05",
    variants: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML of the engines there could be (docs/autoscaling.md).")
    ] = None,
    slice_s: Annotated[float, typer.Option("--slice", min=60.0, metavar="S", help="Time planned as one.")] = 900.0,
    survive: Annotated[bool, typer.Option("--survive-failures", help="One engine of each role may fail.")] = False,
    form: Annotated[str, typer.Option(metavar="FORM", help="aggregated, disaggregated or either.")] = "either",
    least: Annotated[int, typer.Option("--min", min=0, metavar="N", help="Least engines of each role.")] = 1,
    most: Annotated[int, typer.Option("--max", min=1, metavar="N", help="Most engines of each role.")] = 1024,
    quota: Annotated[
        list[str] | None, typer.Option(metavar="HARDWARE=N", help="Most accelerators of a kind; may be repeated.")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, show_default="as the trace has it", help="Tokens a block of the trace.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as JSON; - for standard output.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
) -> None:
    """What engines are needed: by a running router now, and why; with --trace, by a day of recorded traffic.

    The key, where the router wants one, is taken from KVROUTER_API_KEY.
    """
    from router import plan_call

    console = Console()
    console = console if console.is_terminal else Console(width=200)
    given = {name for name in context.params if _was_given(context, name)}
    if trace:
        if "url" in given:
            raise ConfigError(f"{url} and --trace: a plan is a running router's or a recorded day's, so leave one out")
        plan_call.offline(
            plan_call.Offline(
                traces=[str(path) for path in trace],
                slo=slo,
                variants=variants,
                slice_s=slice_s,
                survive_failures=survive,
                form=form,
                least=least,
                most=most,
                quotas=quota or [],
                block_size=block_size,
                json=json,
                html=html,
            ),
            console,
        )
    else:
        for option in context.command.params:
            if option.name in given - {"url", "json"}:
                raise ConfigError(
                    f"{option.opts[0]} is for a recorded day, and a running router has its own settings: "
                    "name a day with --trace, or leave it out"
                )
        plan_call.live(url, json, console)


@app.command("hash-key")
def hash_key() -> None:
    """Print the digest of the key on standard input, to put into `server.api_keys` or a key file in place of the key.

    A good key: openssl rand -base64 32
    """
    example = "openssl rand -base64 32 | kvrouter hash-key"
    try:
        given = sys.stdin.read().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"standard input is not UTF-8 text: pipe a key in, like: {example}") from None
    if not given:
        raise ConfigError(f"standard input holds no key: pipe one in, like: {example}")
    if not sendable(given):
        raise ConfigError(
            "standard input holds several lines or a control character, which no client can send in a header: "
            f"pipe one key in, like: {example}"
        )
    typer.echo(hashed(given))


@app.command("version")
def show_version() -> None:
    """Print the version."""
    typer.echo(f"kvrouter {own_version()} (Python {platform.python_version()})")


def own_version() -> str:
    try:
        return version("kvrouter")
    except PackageNotFoundError:
        return "0+unknown"


def _was_given(context: typer.Context, name: str) -> bool:
    """Whether a parameter was written on the command line, though it may have its default's value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check(settings: Settings) -> int:
    # Imported here for the same reason as in `_serve`.
    from router.check import check
    from router.check_view import show

    report = asyncio.run(check(settings))
    console = Console()
    # Into a file or a pipe: no width is known, and a folded table is hard to read and to search.
    show(report, console if console.is_terminal else Console(width=160))
    return 0 if report.good else 1


def _serve(settings: Settings, loader: SettingsLoader) -> int:
    # Imported here so that `kvrouter --help` and `version` need not load the whole server.
    if settings.server.workers > 1:
        from router.workers.parent import serve_many

        return serve_many(settings, loader)
    from router.serving import serve as serve_app

    return serve_app(settings, loader)


def run(arguments: Sequence[str]) -> int:
    """The command, without leaving the process. Returns the exit code."""
    try:
        code = app(list(arguments), prog_name="kvrouter", standalone_mode=False)
    except ConfigError as error:
        return _complain(str(error))
    except TyperException as error:
        return _complain(_said(error))
    except (Abort, KeyboardInterrupt):
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _said(error: TyperException) -> str:
    """What the command line's parser says; of a value it refuses, in the words that settings are refused in."""
    cause, said = error.__cause__, error.format_message()
    if not isinstance(cause, ValidationError):
        return said
    details = cause.errors(include_url=False)[0]
    if details["type"] == "value_error":
        mend = str(details["ctx"]["error"])
    else:
        mend = f"it must be {expected(details)}, not {str(details['input'])[:40]}"
    return f"{said.removesuffix(error.message)}{mend}"


def main() -> None:
    """The console script."""
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # Whatever was under way has been ended. What libraries still do when an interpreter ends may wait for, or trip
        # over, processes that are gone.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _complain(message: str) -> int:
    sentence = " ".join(message.split())
    if sentence:
        print(f"kvrouter: {sentence}", file=sys.stderr)  # noqa: T201
    return BAD_INPUT
