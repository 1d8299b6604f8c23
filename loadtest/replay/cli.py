"""The command line ``kvrouter replay``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.replay import study_cli
from loadtest.replay.page import chart_maker, page
from loadtest.replay.plan import Plan, fleet, load, run_all
from loadtest.replay.policies.catalogue import CATALOGUE, find
from loadtest.replay.report import as_json, make_report
from loadtest.replay.results import Run, Slo, Window, slo_headers
from loadtest.replay.scaling.base import LAWS
from loadtest.replay.scaling.days import DAYS
from loadtest.replay.simulation import Conditions
from loadtest.replay.synthetic import KINDS
from loadtest.replay.view import show
from loadtest.replay.workload import Workload
from router.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

_POLICIES = ("default", "round-robin", "least-requests", "llm-d", "lmetric", "pooled")


@app.command()
def replay(
    context: typer.Context,
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE...",
            help=f"JSONL, CSV or request log, gzipped or not; or synthetic:NAME with one of {', '.join(KINDS)}; "
            f"with --scaling also day:NAME with one of {', '.join(DAYS)}.",
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What to compare; [b]all[/b], or one or more names: "
            + ", ".join(CATALOGUE)
            + "; a kvrouter or EndpointPickerConfig YAML; NAME@SECONDS sets the age "
            "of its metrics. May be repeated.",
        ),
    ] = None,
    engines: Annotated[int, typer.Option(min=1, max=1024, help="Engines that serve whole requests.")] = 8,
    prefill: Annotated[int, typer.Option(min=0, max=1024, help="Prefill engines, with --decode.")] = 0,
    decode: Annotated[int, typer.Option(min=0, max=1024, help="Decode engines, with --prefill.")] = 0,
    engine_profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE", show_default="70b-tp4", help="Constants of an engine; several are dealt out in turn."
        ),
    ] = None,
    speed: Annotated[float, typer.Option(min=0.001, max=1000.0, help="So many times the trace's rate.")] = 1.0,
    seed: Annotated[list[int] | None, typer.Option(help="A seed of arrivals; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds, from 1 on.")] = 1,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", show_default="the first", help="The policy to compare with.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="TTFT,TPOT", show_default="2,0.05", help="Objectives in seconds; may be repeated."),
    ] = None,
    begin: Annotated[
        float, typer.Option("--from", min=0.0, metavar="S", help="Requests that arrive before this do not count.")
    ] = 0.0,
    until: Annotated[
        float | None, typer.Option(min=0.0, metavar="S", help="Nor those that arrive from here on.")
    ] = None,
    skip: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Leave out the requests of the trace's first seconds.")
    ] = 0.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first requests of the trace.")] = None,
    block_size: Annotated[
        int | None, typer.Option(min=1, show_default="as the trace has it", help="Tokens a block.")
    ] = None,
    closed: Annotated[
        bool | None,
        typer.Option(
            "--closed-loop/--open-loop",
            show_default="as the trace has it",
            help="Whether turns wait for the answer before them.",
        ),
    ] = None,
    jitter: Annotated[bool, typer.Option(help="Spread arrivals within the trace's ticks.")] = True,
    metrics_age: Annotated[
        float, typer.Option(min=0.0, max=3600.0, metavar="S", help="Pause between two scrapes; 0: always fresh.")
    ] = 0.0,
    event_lag: Annotated[float, typer.Option(min=0.0, max=3600.0, metavar="S", help="How late KV events come.")] = 0.0,
    approximate: Annotated[bool, typer.Option("--approximate", help="Engines send no KV events.")] = False,
    preemption: Annotated[bool, typer.Option("--preemption", help="Engines admit what fits now and preempt.")] = False,
    cache_answers: Annotated[
        bool, typer.Option("--cache-answers", help="Blocks of answers stay in the cache.")
    ] = False,
    transfer: Annotated[
        str, typer.Option(metavar="MS,US", help="Time of a hand-off: milliseconds, and microseconds a token.")
    ] = "5,5",
    send_slo: Annotated[
        bool, typer.Option("--send-slo", help="Requests name the first --slo in their headers.")
    ] = False,
    kv_scale: Annotated[float, typer.Option(min=0.001, max=1000.0, help="So many times the profile's KV space.")] = 1.0,
    slow: Annotated[
        list[str] | None, typer.Option(metavar="ENGINE=FACTOR", help="e2=0.33: that engine at a third of its speed.")
    ] = None,
    kill: Annotated[list[str] | None, typer.Option(metavar="ENGINE@S", help="e2@600: that engine dies then.")] = None,
    join: Annotated[list[float] | None, typer.Option(metavar="S", help="One more engine, cold, from then on.")] = None,
    scaling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LAW[@KNOB]",
            help=f"Compare laws of scaling under the first --policy: {', '.join(LAWS)}. May be repeated.",
        ),
    ] = None,
    startup: Annotated[float, typer.Option(metavar="S", help="Start-up time of engines.")] = 90.0,
    preempt: Annotated[
        bool, typer.Option("--preempt/--no-preempt", help="Whether latency-tolerant requests give way.")
    ] = True,
    windows: Annotated[
        int,
        typer.Option(min=0, max=1000, help="Short windows on which to search what who knows the future would do."),
    ] = 0,
    window_size: Annotated[int, typer.Option(min=2, max=50, help="Requests of such a window.")] = 40,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 1,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - for standard output.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Run a matrix of replays from a YAML file; TRACE is the folder of its traces."
        ),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where a study keeps its runs, so that it can be continued.")
    ] = Path("study-results"),
) -> None:
    """What each routing policy would have given this traffic: times, goodput, hit rate, regret. No engine is needed.

    Drives the router's own scheduling code against simulated engines on a virtual clock. See docs/replay.md.
    """
    if study is not None:
        study_cli.run(study, traces[0] if traces else Path(), results, jobs)
        return
    if not traces:
        raise ConfigError("there is nothing to replay: name a trace, or a study with --study")
    names = list(policy or _POLICIES)
    if names == ["all"]:
        names = list(CATALOGUE)
    slos = tuple(_slo(text) for text in slo or ("2,0.05",))
    hand_off = _pair("--transfer", transfer, "5,5")
    plan = Plan(
        traces=[str(path) for path in traces],
        policies=list(dict.fromkeys(names)),
        seeds=tuple(dict.fromkeys(seed)) if seed else tuple(range(1, seeds + 1)),
        engines=engines,
        prefill=prefill,
        decode=decode,
        profiles=tuple(engine_profile or ("70b-tp4",)),
        slow=dict(_slow(text) for text in slow or ()),
        kv_scale=kv_scale,
        deaths=tuple(_kill(text) for text in kill or ()),
        joins=tuple(join or ()),
        speed=speed,
        skip=skip,
        limit=limit,
        block_size=block_size,
        closed=closed,
        jitter=jitter,
        conditions=Conditions(
            metrics_age_s=metrics_age,
            event_lag_s=event_lag,
            exact=not approximate,
            preemption=preemption,
            cache_answers=cache_answers,
            transfer_s=hand_off[0] / 1e3,
            transfer_token_s=hand_off[1] / 1e6,
            headers=slo_headers(slos[0]) if send_slo else {},
        ),
        slos=slos,
        outlooks=windows,
        outlook_size=window_size,
        window=Window(begin, until if until is not None else float("inf")),
    )
    if scaling:
        plan = msgspec.structs.replace(plan, policies=plan.policies if policy else ["default"])
        _scale(
            plan, scaling, startup, preempt, jobs, json, html, shlex.join(["kvrouter", "replay", *(context.obj or ())])
        )
        return
    _check(plan, baseline)
    charts = None if html is None else chart_maker()
    workload = load(plan)
    runs = _run(plan, workload, jobs)
    report = make_report(plan, workload.name, runs, baseline or plan.policies[0])
    if str(json) == "-":
        typer.echo(as_json(report), nl=False)
        return
    console = Console()
    show(report, console if console.is_terminal else Console(width=200))
    if json is not None:
        _write(json, as_json(report))
    if html is not None and charts is not None:
        _write(html, page(report, runs, shlex.join(["kvrouter", "replay", *(context.obj or ())]), charts).encode())


_LONGEST_STARTUP_S = 86_400.0


def _scale(
    plan: Plan,
    laws: list[str],
    startup_s: float,
    preempt: bool,
    jobs: int,
    json: Path | None,
    html: Path | None,
    command: str,
) -> None:
    """Laws of scaling instead of policies of routing. Raises `ConfigError`."""
    try:
        from loadtest.replay.scaling import run, view
    except ImportError as error:
        raise ConfigError(
            f"--scaling needs {error.name}, which is not installed: pip install 'kvrouter[planner]'"
        ) from None
    if not 1.0 <= startup_s <= _LONGEST_STARTUP_S:
        raise ConfigError(
            f"--startup {startup_s:g}: give a number of seconds from 1 to {_LONGEST_STARTUP_S:g}, like 90"
        )
    find(plan.policies[0])
    charts = None if html is None else view.chart_maker()
    disaggregated = bool(plan.prefill or plan.decode)
    asked = run.Scaling(
        plan=plan, laws=list(dict.fromkeys(laws)), startup_s=startup_s, disaggregated=disaggregated, preempt=preempt
    )
    outcomes = run.run_laws(asked, jobs)
    if str(json) == "-":
        typer.echo(view.as_json(asked, outcomes), nl=False)
        return
    console = Console()
    view.show(asked, outcomes, console if console.is_terminal else Console(width=200))
    if json is not None:
        _write(json, view.as_json(asked, outcomes))
    if html is not None and charts is not None:
        head, body = view.table_of(outcomes)
        title = f"Scaling under {' + '.join(plan.traces)}"
        _write(html, view.page(title, command, head, body, charts(outcomes)).encode())


def _check(plan: Plan, baseline: str | None) -> None:
    """Raises `ConfigError` for what would else be found only when its turn came."""
    for name in plan.policies:
        find(name)
    if baseline is not None and baseline not in plan.policies:
        raise ConfigError(f"--baseline {baseline} is not replayed: it is one of {', '.join(plan.policies)}")
    if bool(plan.prefill) != bool(plan.decode):
        raise ConfigError("--prefill and --decode go together: give how many engines of each there are")
    fleet(plan)


def _run(plan: Plan, workload: Workload, jobs: int) -> list[Run]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        each = len(workload.requests)
        task = bar.add_task("replay", total=each * len(plan.policies) * len(plan.seeds))
        done: dict[tuple[str, int], int] = {}

        def progress(policy: str, seed: int, count: int) -> None:
            done[policy, seed] = count
            bar.update(task, completed=sum(done.values()), description=f"{policy}, seed {seed}")

        return run_all(plan, workload, jobs, progress)


def _slo(text: str) -> Slo:
    return Slo(*_pair("--slo", text, "2,0.05"))


def _pair(option: str, text: str, example: str) -> tuple[float, float]:
    first, _, second = text.partition(",")
    return _number(first, option, text, example), _number(second, option, text, example)


def _slow(text: str) -> tuple[str, float]:
    name, _, factor = text.partition("=")
    return name, _number(factor, "--slow", text, "e2=0.33")


def _kill(text: str) -> tuple[float, str]:
    name, _, at = text.partition("@")
    return _number(at, "--kill", text, "e2@600"), name


def _number(part: str, option: str, text: str, example: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = -1.0
    if not 0.0 < value < float("inf"):
        raise ConfigError(f"{option} {text}: write it like {example}")
    return value


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}): name another file") from None
