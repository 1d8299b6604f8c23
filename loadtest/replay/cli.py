"""The command line ``kvrouter replay``: options in, a plan out, handed to whoever runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from loadtest.replay import options, study_cli
from loadtest.replay.asking import deaths, files_read, hand_off, slos, slowed
from loadtest.replay.plan import Plan
from loadtest.replay.policies.catalogue import CATALOGUE
from loadtest.replay.results import Window, slo_headers
from loadtest.replay.running import Outputs, compare, scale
from loadtest.replay.simulation import Conditions
from router import outputs
from router.errors import ConfigError

app = typer.Typer(add_completion=False, rich_markup_mode="rich")

_POLICIES = ("default", "round-robin", "least-requests", "llm-d", "lmetric", "pooled")
_UNDER_LAWS = ("default",)


@app.command()
def replay(
    context: typer.Context,
    traces: options.Traces = None,
    policy: options.Policy = None,
    engines: options.Engines = None,
    prefill: options.Prefill = 0,
    decode: options.Decode = 0,
    engine_profile: options.EngineProfile = None,
    speed: options.Speed = 1.0,
    seed: options.Seed = None,
    seeds: options.Seeds = 1,
    baseline: options.Baseline = None,
    slo: options.Slo = None,
    begin: options.Begin = 0.0,
    until: options.Until = None,
    skip: options.Skip = 0.0,
    limit: options.Limit = None,
    block_size: options.BlockSize = None,
    closed: options.Closed = None,
    jitter: options.Jitter = True,
    metrics_age: options.MetricsAge = 0.0,
    event_lag: options.EventLag = 0.0,
    approximate: options.Approximate = False,
    preemption: options.Preemption = False,
    cache_answers: options.CacheAnswers = False,
    transfer: options.Transfer = "5,5",
    send_slo: options.SendSlo = False,
    kv_scale: options.KvScale = 1.0,
    slow: options.Slow = None,
    kill: options.Kill = None,
    join: options.Join = None,
    scaling: options.Scaling = None,
    startup: options.Startup = 90.0,
    preempt: options.Preempt = True,
    windows: options.Windows = 0,
    window_size: options.WindowSize = 40,
    jobs: options.Jobs = 1,
    json: options.Json = None,
    html: options.Html = None,
    study: options.Study = None,
    results: options.Results = Path("study-results"),
) -> None:
    """What each routing policy would have given this traffic: times, goodput, hit rate, regret. No engine is needed.

    Drives the router's own scheduling code against simulated engines on a virtual clock. See docs/replay.md.
    """
    options.check_given(context)
    if study is not None:
        study_cli.run(study, traces[0] if traces else Path(), results, jobs)
        return
    if not traces:
        raise ConfigError("there is nothing to replay: name a trace, or a study with --study")
    outputs.check(json, html, files_read(traces, policy or (), engine_profile or ()))
    objectives, moved = slos(slo or ("2,0.05",)), hand_off(transfer)
    names = policy or (_UNDER_LAWS if scaling else _POLICIES)
    if not scaling:
        names = [each for name in names for each in (CATALOGUE if name == "all" else (name,))]
    plan = Plan(
        traces=[str(path) for path in traces],
        policies=list(dict.fromkeys(names)),
        seeds=tuple(seed) if seed else tuple(range(1, seeds + 1)),
        engines=engines or 8,
        prefill=prefill,
        decode=decode,
        profiles=tuple(engine_profile or ("70b-tp4",)),
        slow=slowed(slow or ()),
        kv_scale=kv_scale,
        deaths=deaths(kill or ()),
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
            transfer_s=moved[0],
            transfer_token_s=moved[1],
            headers=slo_headers(objectives[0]) if send_slo else {},
        ),
        slos=objectives,
        outlooks=windows,
        outlook_size=window_size,
        window=Window(begin / speed, float("inf") if until is None else until / speed),
    )
    out = Outputs(json=json, html=html, command=shlex.join(["kvrouter", "replay", *(context.obj or ())]))
    if scaling:
        scale(plan, scaling, startup, preempt, out, jobs)
    else:
        raise typer.Exit(compare(plan, baseline, out, jobs))
