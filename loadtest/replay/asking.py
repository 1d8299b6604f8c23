"""What the texts of options mean, and whether what they ask for together makes sense. PURE but for policy files.

Every mistake is a `ConfigError` of one sentence, before anything is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtest.replay.fleet import Fleet
from loadtest.replay.plan import Plan, fleet, seeded, window_starts
from loadtest.replay.policies.catalogue import find
from loadtest.replay.results import Run, Slo
from loadtest.replay.workload import Workload
from router.errors import ConfigError

_SLOWEST, _FASTEST = 0.001, 1000.0


def slos(texts: Sequence[str]) -> tuple[Slo, ...]:
    """TTFT and TPOT, in seconds."""
    pairs = [_pair("--slo", text, "2,0.05") for text in texts]
    return tuple(Slo(ttft_s, tpot_s) for ttft_s, tpot_s in pairs)


def hand_off(text: str) -> tuple[float, float]:
    """(seconds, seconds a token) from milliseconds and microseconds."""
    once, each = _pair("--transfer", text, "5,5", zero=True)
    return once / 1e3, each / 1e6


def slowed(texts: Sequence[str]) -> dict[str, float]:
    """Engine -> factor."""
    factors: dict[str, float] = {}
    for text in texts:
        name, _, factor = text.partition("=")
        if name in factors:
            raise ConfigError(f"--slow names {name} twice: give it one factor")
        factors[name] = _number(factor, "--slow", text, "e2=0.33")
    return factors


def deaths(texts: Sequence[str]) -> tuple[tuple[float, str], ...]:
    """(seconds, engine)"""
    parted = [(text, *text.partition("@")) for text in texts]
    return tuple((_number(at, "--kill", text, "e2@600", zero=True), name) for text, name, _, at in parted)


def files_read(traces: Sequence[Path], policies: Sequence[str], profiles: Sequence[str]) -> list[str | Path]:
    """What of it may be files: policies without their ``@SECONDS``, profiles without their ``:NAME``."""
    aged = [name.rpartition("@")[0] for name in policies]
    named = [name.rpartition(":")[0] for name in profiles]
    return [*traces, *(name for name in (*policies, *aged, *profiles, *named) if name)]


def _pair(option: str, text: str, example: str, *, zero: bool = False) -> tuple[float, float]:
    first, _, second = text.partition(",")
    return _number(first, option, text, example, zero=zero), _number(second, option, text, example, zero=zero)


def _number(part: str, option: str, text: str, example: str, *, zero: bool = False) -> float:
    """Above 0, or 0 where `zero`."""
    try:
        value = float(part)
    except ValueError:
        value = -1.0
    if not (0.0 < value < float("inf") or (zero and value == 0.0)):
        raise ConfigError(f"{option} {text}: write it like {example}")
    return value


def check_plan(plan: Plan, baseline: str | None = None) -> None:
    """What can be said without the traces."""
    for name in plan.policies:
        find(name)
    if baseline is not None and baseline not in plan.policies:
        raise ConfigError(f"--baseline {baseline} is not replayed: it is one of {', '.join(plan.policies)}")
    if bool(plan.prefill) != bool(plan.decode):
        raise ConfigError("--prefill and --decode go together: give how many engines of each there are")
    if plan.window.begin >= plan.window.end:
        raise ConfigError(
            f"--from {plan.window.begin * plan.speed:g} is not before --until {plan.window.end * plan.speed:g}: "
            "no request would count"
        )
    for name, factor in plan.slow.items():
        if not _SLOWEST <= factor <= _FASTEST:
            raise ConfigError(f"--slow {name}={factor:g}: give a factor from {_SLOWEST:g} to {_FASTEST:g}, like 0.33")
    if plan.outlooks and plan.prefill:
        raise ConfigError("--windows are searched on engines that serve whole requests: leave out --prefill, --decode")
    if plan.outlooks and all(find(name).pooled for name in plan.policies):
        raise ConfigError("--windows say how far a policy is from the best, and pooled is none: name one more --policy")
    _check_deaths(plan, fleet(plan))


def _check_deaths(plan: Plan, engines: Fleet) -> None:
    joins = {member.name: at for at, member in engines.joins}
    dead: set[str] = set()
    for at, name in plan.deaths:
        if name in dead:
            raise ConfigError(f"--kill names {name} twice: it dies once")
        if at < joins.get(name, 0.0):
            raise ConfigError(f"--kill {name}@{at:g}: it joins at {joins[name]:g} s: let it die later")
        dead.add(name)


def check_workload(plan: Plan, workload: Workload) -> None:
    """What can be said of the traces under the plan."""
    if not workload.requests:
        raise ConfigError(
            f"--skip {plan.skip:g}: {workload.name} has no request that late: skip fewer seconds of the trace"
        )
    engines = fleet(plan)
    everyone = [*engines.members, *(member for _, member in engines.joins)]
    largest = max(member.kv_tokens // workload.block_size * workload.block_size for member in everyone)
    shortest = min(request.prompt + request.output for request in workload.requests)
    if shortest - 1 > largest:
        raise ConfigError(
            f"no engine has room for any request: the shortest has {shortest} tokens with its answer, the largest "
            f"KV space {largest}: raise --kv-scale, or name another --engine-profile"
        )
    first = seeded(workload, plan, plan.seeds[0])
    # Turns that wait come when the answers before them are there, which a policy decides.
    counting = [r for r in first.requests if plan.window.begin <= r.at < plan.window.end or r.think is not None]
    if not counting:
        raise _nothing_counts(plan, first.requests[-1].at)
    if plan.outlooks and not window_starts(plan, first):
        raise ConfigError(
            f"--windows {plan.outlooks}: a window has {plan.outlook_size} requests, and {len(counting)} count: "
            "give a smaller --window-size, or fewer that do not count"
        )


def check_run(plan: Plan, run: Run) -> None:
    """When turns come that wait is known behind the run only."""
    if not any(map(plan.window.counts, run.results)):
        raise _nothing_counts(plan, max(result.at for result in run.results))


def unseen(plan: Plan, runs: Sequence[Run]) -> list[str]:
    """What came too late to make a difference to any run."""
    last = max(result.at for run in runs for result in run.results)
    end = max(run.ended_s for run in runs)
    told = [
        f"--join {at:g}: the last request came at {last:.0f} s, before that engine" for at in plan.joins if at > last
    ]
    return told + [f"--kill {name}@{at:g}: all was answered by {end:.0f} s" for at, name in plan.deaths if at > end]


def _nothing_counts(plan: Plan, last_s: float) -> ConfigError:
    """`last_s`: when the last request came, in seconds of the replay."""
    until = "" if plan.window.end == float("inf") else f" --until {plan.window.end * plan.speed:g}"
    return ConfigError(
        f"--from {plan.window.begin * plan.speed:g}{until}: no request counts: they arrive in the trace's seconds "
        f"0 to {last_s * plan.speed:.0f} (as recorded, before --speed)"
    )
