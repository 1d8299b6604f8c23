"""``python -m loadtest.replay_over_http``: does the order of policies in a replay hold over HTTP?

Plays a trace at reduced scale and greater speed through the real router to simulated engines in processes of their own,
once for each policy, and replays the very same requests and engines beside it. Two policies that are more than 15 %
apart in the replay must stand in the same order over HTTP. Exit code 1 when they do not, or when a request failed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console

from loadtest.arguments import Parser, complain, positive, whole, writable
from loadtest.cluster import wait_for
from loadtest.demo.children import Child, ChildFailed, plain_environment
from loadtest.ports import free_ports
from loadtest.replay.fleet import Fleet, Member
from loadtest.replay.plan import Plan, load, seeded
from loadtest.replay.policies.catalogue import find
from loadtest.replay.results import Slo, Window, summarize
from loadtest.replay.simulation import Conditions, Simulation
from loadtest.replay.workload import Workload
from loadtest.replay_over_http.formulas import POLICIES, offer, settings
from loadtest.replay_over_http.play import Played, counted, play
from loadtest.replay_over_http.reduced import Reduction, reduced_profile, reduced_workload
from loadtest.replay_over_http.verdict import Both, Figures, complaints, tables
from loadtest.simulator.settings import find_profile
from loadtest.simulator.timing import EngineProfile
from router.errors import ConfigError

_MODEL = "sim-model"
_STOP_S = 10.0
_TELL_S = 10.0
_SCRAPE_S = 0.25
"""Of reduced time: both routers see metrics of that age."""
_USUAL = ("default", "llm-d", "lmetric", "least-requests", "round-robin")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What is played, and on what: the same in the replay and over HTTP."""

    workload: Workload
    profile: EngineProfile
    engines: int
    begin_s: float
    """Requests that are due before this do not count."""
    seed: int


def router_settings(policy: str) -> dict[str, Any]:
    """The router's configuration. Nothing waits in the router, since in a replay nothing does."""
    return {
        "server": {"access_log": False},
        "pool": {"scrape_interval_s": _SCRAPE_S},
        "flow_control": {"enabled": False},
        "scheduling": settings(policy),
    }


@contextmanager
def router(stage: Stage, policy: str) -> Iterator[int]:
    """The port of a router that serves by the policy, before fresh engines. Raises ChildFailed, OSError."""
    port = free_ports(stage.engines + 1)
    engines = [f"http://127.0.0.1:{port + number}" for number in range(stage.engines)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-")))
        offer(folder)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**plain_environment(), "PYTHONPATH": os.pathsep.join(paths)}
        profile, file = folder / "engine.yaml", folder / "router.yaml"
        profile.write_text(yaml.safe_dump({"reduced": msgspec.structs.asdict(stage.profile)}), encoding="utf-8")
        file.write_text(yaml.safe_dump(router_settings(policy)), encoding="utf-8")

        def start(name: str, arguments: Sequence[str], urls: Sequence[str]) -> None:
            child = Child(name, ["router", *arguments], environ, folder)
            stack.callback(child.stop, _STOP_S)
            wait_for(child, urls)

        flags = [f"--profile={profile}", f"--block-size={stage.workload.block_size}"]
        start("engines", ["sim", "--count", str(stage.engines), "--port", str(port), *flags], [f"{engines[-1]}/health"])
        listening = port + stage.engines
        serve = ["serve", *engines, "--config", str(file), "--port", str(listening)]
        start("router", serve, [f"http://127.0.0.1:{listening}/ready"])
        yield listening


def over_http(stage: Stage, policy: str, tell: Callable[[str], None]) -> Figures:
    """Raises ChildFailed, OSError, TimeoutError."""
    total = len(stage.workload.requests)
    due = time.monotonic() + _TELL_S

    def progress(done: int, failed: int) -> None:
        nonlocal due
        if time.monotonic() >= due or done == total:
            due = time.monotonic() + _TELL_S
            tell(f"{policy} over HTTP: {done} of {total} requests, {failed} failed")

    with router(stage, policy) as port:
        return figures(asyncio.run(play(stage.workload, port, _MODEL, progress)), stage.begin_s)


def figures(played: Sequence[Played], begin_s: float) -> Figures:
    """Of those that count. Raises ValueError when there is none."""
    good = counted(played, begin_s)
    if not good:
        raise ValueError("no request that counts was answered: give --seconds more, or --warm-up less")
    late = sorted(each.late_s for each in good)
    return Figures(
        requests=len(good),
        ttft_s=sum(each.ttft_s or 0.0 for each in good) / len(good),
        e2e_s=sum(each.e2e_s for each in good) / len(good),
        hit_rate=sum(each.cached for each in good) / sum(each.prompt for each in good),
        failed=sum(each.failed for each in played),
        late_s=late[int(0.99 * (len(late) - 1))],
    )


def in_replay(stage: Stage, policy: str) -> Figures:
    members = [
        Member(name=f"e{number}", profile=stage.profile, kv_tokens=stage.profile.kv_tokens)
        for number in range(stage.engines)
    ]
    conditions = Conditions(metrics_age_s=_SCRAPE_S)
    run = Simulation(stage.workload, find(policy), Fleet(members=members), conditions, seed=stage.seed).run()
    summary = summarize(run, (Slo(2.0, 0.05),), Window(stage.begin_s))
    return Figures(
        requests=summary.requests, ttft_s=summary.ttft.mean, e2e_s=summary.e2e.mean, hit_rate=summary.hit_rate
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.replay_over_http", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", metavar="TRACE", help="as kvrouter replay reads it; synthetic:NAME too")
    parser.add_argument(
        "--policy", action="append", choices=POLICIES, help=f"may be repeated; else {', '.join(_USUAL)}"
    )
    parser.add_argument("--engines", type=whole(1, 64), default=8)
    parser.add_argument("--profile", default="70b-tp4", metavar="NAME|FILE", help="constants of an engine")
    parser.add_argument("--speed", type=positive, default=1.0, help="so many times the trace's rate")
    parser.add_argument("--skip", type=whole(0), default=0, metavar="S", help="seconds of the trace to leave out")
    parser.add_argument("--tokens", type=whole(1, 64), default=4, help="so many tokens become one (4)")
    parser.add_argument("--times", type=positive, default=4.0, help="everything happens so many times as fast (4)")
    parser.add_argument("--seconds", type=whole(1, 3600), default=90, help="a policy is played for (90)")
    parser.add_argument("--warm-up", type=whole(0, 3600), default=25, help="seconds of them that do not count (25)")
    parser.add_argument("--margin", type=positive, default=0.15, help="pairs further apart than this are judged (0.15)")
    parser.add_argument("--seed", type=whole(0), default=1, help="of arrivals")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the figures there too")
    options = parser.parse_args(arguments)
    try:
        stage = make_stage(options)
        outcomes = []
        for policy in dict.fromkeys(options.policy or _USUAL):
            replay = in_replay(stage, policy)
            outcomes.append(Both(policy=policy, replay=replay, http=over_http(stage, policy, _tell)))
    except (ConfigError, ChildFailed, OSError, ValueError) as error:
        return complain(error)
    console = Console(width=max(120, shutil.get_terminal_size().columns))
    for table in tables(outcomes, options.margin):
        console.print(table)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(outcomes))
    against = complaints(outcomes, options.margin)
    for complaint in against:
        sys.stderr.write(f"not met: {complaint}\n")
    return 1 if against else 0


def make_stage(options: Any) -> Stage:
    """Raises ConfigError, ValueError."""
    by = Reduction(tokens=options.tokens, times=options.times)
    plan = Plan(traces=[options.trace], policies=(), speed=options.speed, skip=float(options.skip))
    whole_trace = seeded(load(plan), plan, options.seed)
    if whole_trace.closed:
        raise ConfigError(f"{options.trace}: its turns wait for answers: name a trace whose arrivals are given")
    return Stage(
        workload=reduced_workload(whole_trace, by, options.seconds),
        profile=reduced_profile(find_profile(options.profile), by),
        engines=options.engines,
        begin_s=float(options.warm_up),
        seed=options.seed,
    )


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
