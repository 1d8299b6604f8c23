"""The table and the page of a comparison of scaling laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources

import msgspec
from jinja2 import Environment, StrictUndefined
from rich.console import Console

from loadtest.replay.scaling.run import Outcome, Scaling
from loadtest.replay.tables import print_table
from router.errors import ConfigError

Charts = Callable[[Sequence[Outcome]], list[str]]
BOUND = "clairvoyant"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    outcome: Outcome
    over_bound: float | None
    """Engine-hours over those of the cheapest bound that attains what is wanted."""


def rows(outcomes: Sequence[Outcome], attainment: float = 0.99) -> list[Row]:
    bounds = [o.engine_hours for o in outcomes if o.law.startswith(BOUND) and o.attained >= attainment]
    bound = min(bounds, default=None)
    return [
        Row(outcome=outcome, over_bound=None if bound is None else outcome.engine_hours / bound) for outcome in outcomes
    ]


def show(scaling: Scaling, outcomes: Sequence[Outcome], console: Console) -> None:
    slo = scaling.plan.slos[0]
    form = "disaggregated" if scaling.disaggregated else "aggregated"
    title = f"{' + '.join(scaling.plan.traces)}, {form}, {scaling.startup_s:g} s to start, objective {slo}"
    head = ("law", "attained", "TTFT", "TPOT", "engine-hours", "/ bound", "changes", "peak", "held", "failed")
    body = []
    for row in rows(outcomes):
        o = row.outcome
        body.append(
            (
                o.law,
                f"{o.attained:.2%}",
                f"{o.ttft_met:.2%}",
                f"{o.tpot_met:.2%}",
                f"{o.engine_hours:.2f}",
                "-" if row.over_bound is None else f"{row.over_bound:.2f}",
                str(o.actions),
                str(o.peak),
                str(o.most_held),
                str(o.failed),
            )
        )
    print_table(console, title, head, body)


def as_json(scaling: Scaling, outcomes: Sequence[Outcome]) -> bytes:
    shown = {"asked": {"traces": scaling.plan.traces, "startup_s": scaling.startup_s}, "laws": outcomes}
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"


def chart_maker() -> Charts:
    """Raises `ConfigError` when the plots' library is not installed."""
    try:
        from loadtest.replay.scaling.charts import charts
    except ImportError as error:
        raise ConfigError(
            f"--html needs {error.name}, which is not installed: pip install 'kvrouter[loadtest]', or use --json"
        ) from None
    return charts


def page(title: str, command: str, head: Sequence[str], body: Sequence[Sequence[str]], charts: Sequence[str]) -> str:
    """`head` and `body` are a table; `command` makes this page again."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = resources.files("loadtest.replay.scaling").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(template).render(title=title, command=command, head=head, body=body, charts=charts)


def table_of(outcomes: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    head = ["law", "attained, %", "engine-hours", "over bound", "changes", "peak", "failed"]
    body = [
        [
            row.outcome.law,
            f"{100 * row.outcome.attained:.2f}",
            f"{row.outcome.engine_hours:.2f}",
            "" if row.over_bound is None else f"{row.over_bound:.2f}",
            str(row.outcome.actions),
            str(row.outcome.peak),
            str(row.outcome.failed),
        ]
        for row in rows(outcomes)
    ]
    return head, body
