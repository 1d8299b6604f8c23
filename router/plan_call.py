"""What ``kvrouter plan`` does: asks a router for its plan and shows it, or plans a recorded day."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from router import outputs
from router.calls import call, router_address
from router.errors import ConfigError


class Offline(msgspec.Struct, frozen=True, kw_only=True):
    traces: Sequence[str]
    slo: str
    variants: Path | None
    slice_s: float
    survive_failures: bool
    form: str
    least: int
    most: int
    quotas: Sequence[str]
    block_size: int | None
    json: Path | None
    html: Path | None


def offline(asked: Offline, console: Console) -> None:
    """Raises `ConfigError`."""
    outputs.check(asked.json, asked.html, [*asked.traces, *([asked.variants] if asked.variants else ())])
    try:
        from loadtest.replay.scaling import plan_cli, view
    except ImportError as error:
        raise ConfigError(
            f"kvrouter plan needs {error.name}, which is not installed: pip install 'kvrouter[planner]'"
        ) from None
    if asked.html is not None:
        view.chart_maker()
    found = plan_cli.report(
        plan_cli.Asked(
            traces=asked.traces,
            objective=plan_cli.objective(asked.slo),
            variants=plan_cli.variants(asked.variants),
            slice_s=asked.slice_s,
            survive_failures=asked.survive_failures,
            form=asked.form,
            least=asked.least,
            most=asked.most,
            quotas=plan_cli.quotas(asked.quotas),
            block_size=asked.block_size,
        )
    )
    if asked.json == outputs.STANDARD_OUTPUT:
        sys.stdout.write(plan_cli.as_json(found).decode())
    else:
        plan_cli.show(found, console)
    if asked.json not in (None, outputs.STANDARD_OUTPUT):
        outputs.write(asked.json, plan_cli.as_json(found))
    if asked.html is not None:
        outputs.write(asked.html, plan_cli.html(found, _command(asked)).encode())


def _command(asked: Offline) -> str:
    """What makes the same plan again."""
    words = ["kvrouter", "plan", *(f"--trace={trace}" for trace in asked.traces), f"--slo={asked.slo}"]
    if asked.variants is not None:
        words.append(f"--variants={asked.variants}")
    words += [f"--slice={asked.slice_s:g}", f"--form={asked.form}", f"--min={asked.least}", f"--max={asked.most}"]
    words += [f"--quota={quota}" for quota in asked.quotas]
    if asked.survive_failures:
        words.append("--survive-failures")
    if asked.block_size is not None:
        words.append(f"--block-size={asked.block_size}")
    return shlex.join(words)


def live(url: str, json: Path | None, console: Console) -> None:
    """Raises `ConfigError` for a router that cannot be reached or has no planner."""
    outputs.check(json, None)
    address = router_address(url)
    answer = call("GET", address, "/debug/plan")
    try:
        shown = msgspec.json.decode(answer.content)
    except msgspec.DecodeError:
        shown = None
    if answer.status_code != 200 or not isinstance(shown, dict) or "plans" not in shown:
        raise ConfigError(
            f"{address} does not answer like a kvrouter ({answer.status_code}): give a running router's address"
        )
    if json == outputs.STANDARD_OUTPUT:
        sys.stdout.write(answer.text)
        return
    if json is not None:
        outputs.write(json, answer.content)
    if not shown["enabled"]:
        raise ConfigError(f"{url} does not plan: set capacity.planner to true (docs/autoscaling.md)")
    _show(shown, console)


def _show(shown: dict[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("pool", "does", "has", "wants", "binds", "attains", "rate", "cost/h", "sure"):
        table.add_column(name, no_wrap=True)
    for plan in shown["plans"]:
        attained = plan["attainment"]
        table.add_row(
            plan["pool"],
            f"{plan['action']} ({plan['reason']})",
            _engines(plan["present"]),
            _engines(plan["desired"]),
            plan["binding"],
            "-" if attained is None else f"{attained:.1%}",
            f"{plan['rate']:.2f}/s",
            f"{plan['cost_per_hour']:.2f}",
            f"{plan['confidence']:.2f}",
        )
    console.print(table)
    for plan in shown["plans"]:
        console.print(f"\n{plan['pool']}: {plan['why']}.", highlight=False)
        if plan["marginal"]:
            console.print(f"  {plan['marginal']}.", highlight=False)
        for other in plan["alternatives"]:
            price = "" if other["cost_per_hour"] is None else f"{other['cost_per_hour']:g} an hour: "
            console.print(f"  rejected: {other['what']}: {price}{other['why']}", highlight=False)
    if shown["stale_s"] is not None:
        console.print(f"\nmade {shown['stale_s']:.0f} s ago", highlight=False)


def _engines(counts: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{each['count']} {each['role']} {each['variant']}" for each in counts) or "none"
