"""The options of ``kvrouter replay``: names, bounds, help texts, and which of them each kind of replay looks at."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from loadtest.replay.policies.catalogue import CATALOGUE
from loadtest.replay.scaling.base import LAWS
from loadtest.replay.scaling.days import DAYS
from loadtest.replay.synthetic import KINDS
from router.errors import ConfigError

Traces = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="TRACE...",
        help=f"JSONL, CSV or request log, gzipped or not; or synthetic:NAME with one of {', '.join(KINDS)}; "
        f"with --scaling also day:NAME with one of {', '.join(DAYS)}.",
    ),
]
Policy = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="What to compare; [b]all[/b] of these, or by name: "
        + ", ".join(CATALOGUE)
        + "; a kvrouter or EndpointPickerConfig YAML; NAME@SECONDS sets the age of its metrics. May be repeated.",
    ),
]
Engines = Annotated[
    int | None, typer.Option(min=1, max=1024, show_default="8", help="Engines that serve whole requests.")
]
Prefill = Annotated[int, typer.Option(min=0, max=1024, help="Prefill engines, with --decode.")]
Decode = Annotated[int, typer.Option(min=0, max=1024, help="Decode engines, with --prefill.")]
EngineProfile = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE[:NAME]",
        show_default="70b-tp4",
        help="Constants of an engine; several are dealt out in turn.",
    ),
]
Speed = Annotated[
    float, typer.Option(min=0.001, max=1000.0, help="So many times the trace's rate; pauses between turns shrink too.")
]
Seed = Annotated[list[int] | None, typer.Option(help="A seed of arrivals; may be repeated.")]
Seeds = Annotated[int, typer.Option(min=1, max=100, help="How many seeds, from 1 on.")]
Baseline = Annotated[
    str | None, typer.Option(metavar="NAME", show_default="the first", help="The policy to compare with.")
]
Slo = Annotated[
    list[str] | None,
    typer.Option(metavar="TTFT,TPOT", show_default="2,0.05", help="Objectives in seconds; may be repeated."),
]
Begin = Annotated[
    float,
    typer.Option(
        "--from",
        min=0.0,
        metavar="S",
        help="Requests of the trace's first S seconds (as recorded, before --speed) do not count.",
    ),
]
Until = Annotated[float | None, typer.Option(min=0.0, metavar="S", help="Nor those from its second S on.")]
Skip = Annotated[
    float, typer.Option(min=0.0, metavar="S", help="Leave out the requests of the trace's first S seconds.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first requests of the trace.")]
BlockSize = Annotated[int | None, typer.Option(min=1, show_default="as the trace has it", help="Tokens a block.")]
Closed = Annotated[
    bool | None,
    typer.Option(
        "--closed-loop/--open-loop",
        show_default="as the trace has it",
        help="Whether turns wait for the answer before them.",
    ),
]
Jitter = Annotated[bool, typer.Option(help="Spread arrivals within the trace's ticks.")]
MetricsAge = Annotated[
    float, typer.Option(min=0.0, max=3600.0, metavar="S", help="Pause between two scrapes; 0: always fresh.")
]
EventLag = Annotated[float, typer.Option(min=0.0, max=3600.0, metavar="S", help="How late KV events come.")]
Approximate = Annotated[bool, typer.Option("--approximate", help="Engines send no KV events.")]
Preemption = Annotated[bool, typer.Option("--preemption", help="Engines admit what fits now and preempt.")]
CacheAnswers = Annotated[bool, typer.Option("--cache-answers", help="Blocks of answers stay in the cache.")]
Transfer = Annotated[
    str, typer.Option(metavar="MS,US", help="Time of a hand-off: milliseconds, and microseconds a token.")
]
SendSlo = Annotated[bool, typer.Option("--send-slo", help="Requests name the first --slo in their headers.")]
KvScale = Annotated[float, typer.Option(min=0.001, max=1000.0, help="So many times the profile's KV space.")]
Slow = Annotated[
    list[str] | None, typer.Option(metavar="ENGINE=FACTOR", help="e2=0.33: that engine at a third of its speed.")
]
Kill = Annotated[
    list[str] | None,
    typer.Option(metavar="ENGINE@S", help="e2@600: that engine dies 600 s into the replay (after --speed)."),
]
Join = Annotated[
    list[float] | None,
    typer.Option(min=0.0, metavar="S", help="One more engine, cold, from so many seconds into the replay on."),
]
Scaling = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LAW[@KNOB]",
        help=f"Compare laws of scaling under the --policy: {', '.join(LAWS)}. May be repeated.",
    ),
]
Startup = Annotated[float, typer.Option(metavar="S", help="Start-up time of engines, with --scaling.")]
Preempt = Annotated[
    bool,
    typer.Option("--preempt/--no-preempt", help="Whether latency-tolerant requests give way, with --scaling."),
]
Windows = Annotated[
    int, typer.Option(min=0, max=1000, help="Short windows on which to search what who knows the future would do.")
]
WindowSize = Annotated[int, typer.Option(min=2, max=50, help="Requests of such a window.")]
Jobs = Annotated[int, typer.Option(min=1, max=64, help="Processes.")]
Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON; - for standard output.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")]
Study = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Run a matrix of replays from a YAML file; TRACE is the folder of its traces."),
]
Results = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Where a study keeps its runs, so that it can be continued.")
]

_OF_A_STUDY = frozenset(("traces", "study", "results", "jobs"))
_NOT_OF_SCALING = frozenset(
    ("engines", "seeds", "baseline", "begin", "until", "kv_scale", "slow", "kill", "join", "windows", "window_size")
)
_OF_SCALING_ALONE = frozenset(("startup", "preempt"))
_NAMED_ONCE = ("policy", "seed", "slo", "scaling")
_ONCE_IN_SCALING = ("policy", "engine_profile", "seed", "slo")


def check_given(context: typer.Context) -> None:
    """What was given and would not be looked at is a mistake, and so is a number that is none.

    Raises `ConfigError` that names it.
    """
    flags = {
        parameter.name: max(parameter.opts, key=len)
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) is not None and source.name == "COMMANDLINE"
    }
    values = context.params
    for name, flag in flags.items():
        given = values[name] if isinstance(values[name], list) else [values[name]]
        if any(isinstance(value, float) and not math.isfinite(value) for value in given):
            raise ConfigError(f"{flag}: give a finite number")
    if "study" in flags:
        for name in flags.keys() - _OF_A_STUDY:
            raise ConfigError(f"{flags[name]} is not looked at with --study: write it in the study's file")
        if len(values["traces"] or ()) > 1:
            raise ConfigError(
                "--study takes one folder, which the names of its traces are relative to: leave the others"
            )
    elif "results" in flags:
        raise ConfigError("--results is where a study keeps its runs: give --study too, or leave it out")
    elif "scaling" in flags:
        for name in flags.keys() & _NOT_OF_SCALING:
            raise ConfigError(f"{flags[name]} is not looked at with --scaling: leave it out")
        for name in _ONCE_IN_SCALING:
            if len(values[name] or ()) > 1:
                raise ConfigError(f"--scaling compares laws under one {flags[name]}: give it once")
    else:
        for name in flags.keys() & _OF_SCALING_ALONE:
            raise ConfigError(f"{flags[name]} says how fleets grow: give --scaling too, or leave it out")
    for name in flags.keys() & set(_NAMED_ONCE):
        for value in values[name]:
            if values[name].count(value) > 1:
                raise ConfigError(f"{flags[name]} {value} is given twice: leave it out once")
    if "transfer" in flags and not values["prefill"]:
        raise ConfigError("--transfer is the time of a hand-off: give --prefill and --decode too, or leave it out")
    if {"event_lag", "approximate"} <= flags.keys():
        raise ConfigError("--event-lag says how late KV events come, and with --approximate none do: leave one out")
    if {"seed", "seeds"} <= flags.keys():
        raise ConfigError("--seed and --seeds exclude each other: name the seeds, or say how many")
    if "engines" in flags and (values["prefill"] or values["decode"]):
        raise ConfigError("--engines and --prefill with --decode exclude each other: give the one or the other")
    if "window_size" in flags and not values["windows"]:
        raise ConfigError("--window-size says how long the windows of --windows are: give it too")
