"""``kvrouter plan --trace``: what a day of recorded traffic needs, as a cost table and a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from loadtest.replay.plan import Plan as ReplayPlan
from loadtest.replay.plan import load
from loadtest.replay.scaling import view
from loadtest.replay.scaling.days import DAY, make_day
from loadtest.replay.scaling.needs import Needs, needs
from loadtest.replay.scaling.planned import variant_of
from loadtest.replay.workload import Workload
from loadtest.simulator.settings import find_profile
from router import outputs, plain_yaml
from router.capacity.demand import Objective
from router.capacity.plan import Rules
from router.capacity.variants import Variant, VariantError, read, serves
from router.core import Role
from router.errors import ConfigError

_ALTERNATIVES = 6
_MOST_SLICES = 50_000


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    traces: Sequence[str]
    objective: Objective
    variants: Sequence[Variant]
    slice_s: float = 900.0
    headroom: float = 0.05
    survive_failures: bool = False
    form: str = "either"
    """aggregated, disaggregated or either."""
    least: int = 1
    most: int = 1024
    """Engines of each role."""
    quotas: Mapping[str, int] = {}
    block_size: int | None = None
    """Tokens; None: as the trace has it."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Costs are money for the whole trace."""

    asked: Asked
    requests: int
    needs: Needs
    following: float
    fixed: float
    alone: Sequence[tuple[str, float, float]]
    """(variant, cost of following with it alone, cost of a fixed fleet of it)."""


def objective(text: str) -> Objective:
    """From ``ttft=2,tpot=0.05`` with, if wanted, ``attainment=0.99``. Raises `ConfigError`."""
    fields = {"ttft": "ttft_s", "tpot": "tpot_s", "attainment": "attainment"}
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name.strip() not in fields or not 0.0 < number < float("inf"):
            raise ConfigError(f"--slo {text}: write it like ttft=2,tpot=0.05 (seconds) or with attainment=0.99")
        values[fields[name.strip()]] = number
    if values.get("attainment", 0.5) >= 1.0:
        raise ConfigError(f"--slo {text}: attainment is a share below 1, like 0.99")
    return msgspec.convert(values, Objective)


def quotas(given: Sequence[str]) -> dict[str, int]:
    """From ``HARDWARE=ACCELERATORS``. Raises `ConfigError`."""
    found = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal():
            raise ConfigError(f"--quota {text}: write it like h100=64, hardware and the most accelerators of it")
        found[name] = int(number)
    return found


def variants(path: Path | None) -> tuple[Variant, ...]:
    """From a YAML file, or the simulator's 70B engine. Raises `ConfigError`."""
    if path is None:
        return (variant_of(find_profile("70b-tp4"), 90.0, "70b-tp4"),)
    try:
        return read(plain_yaml.load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"--variants {path} cannot be read ({error.strerror}): name a YAML file") from None
    except (UnicodeDecodeError, plain_yaml.NotYaml) as error:
        raise ConfigError(f"--variants {path} is no YAML ({error}): mend the file") from None
    except VariantError as error:
        raise ConfigError(f"--variants {path}: {error}") from None


def report(asked: Asked) -> Report:
    """Raises `ConfigError`."""
    if not 0.0 < asked.slice_s < math.inf:
        raise ConfigError(f"--slice {asked.slice_s:g}: give a number of seconds, like 900")
    _check(asked)
    workload = _workload(asked.traces, asked.block_size)
    _bounded(workload, asked.slice_s)
    found = needs(workload, asked.variants, _rules(asked), asked.slice_s, asked.quotas)
    alone = []
    if len(asked.variants) > 1:
        for variant in [each for each in asked.variants if _complete([each], asked.form)][:_ALTERNATIVES]:
            only = needs(workload, [variant], _rules(asked, [variant]), asked.slice_s, asked.quotas)
            alone.append((variant.name, only.following(), only.fixed([variant])))
    return Report(
        asked=asked,
        requests=len(workload.requests),
        needs=found,
        following=found.following(),
        fixed=found.fixed(asked.variants),
        alone=alone,
    )


def _check(asked: Asked) -> None:
    """Raises `ConfigError`."""
    needed = {"aggregated": "both", "disaggregated": "prefill and decode", "either": "both, or prefill and decode"}
    if asked.form not in needed:
        raise ConfigError(f"--form {asked.form}: it is one of {', '.join(needed)}")
    if not _complete(asked.variants, asked.form):
        words = needed[asked.form]
        raise ConfigError(f"--variants: none of them can serve a request: give one the role {words}")
    if not 0 <= asked.least <= asked.most or asked.most < 1:
        raise ConfigError(
            f"--min {asked.least} and --max {asked.most}: give a number of engines that is not above --max"
        )
    known = sorted({variant.hardware for variant in asked.variants if variant.hardware})
    for hardware in asked.quotas:
        if hardware not in known:
            there = f"it is one of {', '.join(known)}" if known else "give one that as its hardware in --variants"
            raise ConfigError(f"--quota {hardware}: no variant has that hardware: {there}")


def _complete(variants: Sequence[Variant], form: str = "either") -> bool:
    whole = form != "disaggregated" and serves(variants, [Role.BOTH])
    return whole or (form != "aggregated" and serves(variants, [Role.PREFILL, Role.DECODE]))


def _workload(traces: Sequence[str], block_size: int | None) -> Workload:
    if traces and traces[0].startswith(DAY):
        if block_size is not None:
            raise ConfigError(f"--block-size: {traces[0]} has its own, leave it out")
        return make_day(traces[0].removeprefix(DAY)).workload
    return load(ReplayPlan(traces=list(traces), policies=[], block_size=block_size), outputs.remark)


def _bounded(workload: Workload, slice_s: float) -> None:
    """One time that is wrong makes a day of ages. Raises `ConfigError`."""
    times = [request.at for request in workload.requests]
    if not times or times[-1] / slice_s <= _MOST_SLICES:
        return
    before, after = max(pairwise([0.0, *times]), key=lambda pair: pair[1] - pair[0])
    raise ConfigError(
        f"--trace: it lasts {times[-1]:g} s, which is more than {_MOST_SLICES} slices of {slice_s:g} s, and from "
        f"{before:g} s to {after:g} s there is no request: mend a time that is wrong, or give a longer --slice"
    )


def _rules(asked: Asked, variants: Sequence[Variant] | None = None) -> Rules:
    roles = {role for variant in variants or asked.variants for role in variant.roles}
    return Rules(
        objective=asked.objective,
        aggregated=Role.BOTH in roles and asked.form != "disaggregated",
        disaggregated={Role.PREFILL, Role.DECODE} <= roles and asked.form != "aggregated",
        headroom=asked.headroom,
        survive_failures=asked.survive_failures,
        least=asked.least,
        most=asked.most,
    )


def show(found: Report, console: Console) -> None:
    table = Table(title="What it needs, and when", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in ("from", "requests/s", "cached", "engines", "cost/h", "attained", "binds"):
        table.add_column(name, justify="left" if name in ("engines", "binds") else "right", no_wrap=True)
    for row in _rows(found):
        table.add_row(*row)
    console.print(table)
    costs = Table(title="\nWhat it costs", title_justify="left", title_style="bold", box=None, pad_edge=False)
    costs.add_column("fleet")
    costs.add_column("engines", no_wrap=True)
    costs.add_column("cost", justify="right")
    for row in _costs(found):
        costs.add_row(*row)
    console.print(costs)
    said = ("cannot meet it on any variant", "miss the objective with any number")
    impossible = [one.plan.why for one in found.needs.slices if any(words in one.plan.why for words in said)]
    if impossible:
        console.print(f"\n{impossible[0]}", highlight=False)


def _rows(found: Report) -> list[list[str]]:
    return [
        [
            _clock(one.begin_s),
            f"{one.rate:.2f}",
            f"{one.cached_share:.0%}",
            _engines(one.plan.desired),
            f"{one.plan.cost_per_hour:.2f}",
            "-" if one.plan.attainment is None else f"{one.plan.attainment:.2%}",
            one.plan.binding,
        ]
        for one in found.needs.slices
    ]


def _costs(found: Report) -> list[list[str]]:
    dearest = max(found.needs.slices, key=lambda one: one.plan.cost_per_hour, default=None)
    rows = [
        ["following the traffic", "", f"{found.following:.2f}"],
        ["fixed, enough all day", "" if dearest is None else _engines(dearest.plan.desired), f"{found.fixed:.2f}"],
    ]
    for name, following, fixed in found.alone:
        rows.append([f"{name} alone, following", "", f"{following:.2f}"])
        rows.append([f"{name} alone, fixed", "", f"{fixed:.2f}"])
    return rows


def _engines(counts: object) -> str:
    assert isinstance(counts, dict)
    return ", ".join(f"{count} {role.value} {name}" for (role, name), count in sorted(counts.items())) or "none"


def _clock(seconds: float) -> str:
    minutes = int(seconds // 60)
    return f"{minutes // 60:d}:{minutes % 60:02d}"


def as_json(found: Report) -> bytes:
    """Keys (role, variant) are written as ``role/variant``."""
    slices = [
        {
            "begin_s": one.begin_s,
            "rate": one.rate,
            "cached_share": one.cached_share,
            "engines": {f"{role.value}/{name}": n for (role, name), n in one.plan.desired.items()},
            "cost_per_hour": one.plan.cost_per_hour,
            "attainment": one.plan.attainment,
            "binding": one.plan.binding,
            "why": one.plan.why,
        }
        for one in found.needs.slices
    ]
    shown = {
        "requests": found.requests,
        "following": found.following,
        "fixed": found.fixed,
        "alone": [{"variant": n, "following": a, "fixed": b} for n, a, b in found.alone],
        "slices": slices,
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"


def html(found: Report, command: str) -> str:
    """Raises `ConfigError` when the plots' library is not installed."""
    view.chart_maker()
    from loadtest.replay.scaling.charts import course

    slices = found.needs.slices
    keys = sorted({key for one in slices for key in one.plan.desired})
    lines = {
        f"{role.value} {name}": [(one.begin_s / 3600, one.plan.desired.get((role, name), 0)) for one in slices]
        for role, name in keys
    }
    plots = [
        course("Engines", lines, "h"),
        course("Requests a second, busiest minute", {"rate": [(o.begin_s / 3600, o.rate) for o in slices]}, "h"),
        course("Cost an hour", {"cost": [(o.begin_s / 3600, o.plan.cost_per_hour) for o in slices]}, "h"),
    ]
    head = ["from", "requests/s", "cached", "engines", "cost/h", "attained", "binds"]
    return view.page(f"What {' + '.join(found.asked.traces)} needs", command, head, _rows(found), plots)
