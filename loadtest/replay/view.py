"""The tables of a report on a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtest.replay.compare import Ratio
from loadtest.replay.report import Report, Row, failure
from loadtest.replay.results import Spread


def show(report: Report, console: Console) -> None:
    console.print(Text.assemble((report.title, "bold"), f": {report.situation}"))
    console.print(_times(report))
    console.print(_work(report))
    if any(row.summary.failed for row in report.rows):
        console.print(_failures(report))
    if any(len(row.summary.reasons) > 1 for row in report.rows):
        console.print(_reasons(report))
    if len(report.rows) > 1 or report.plan.outlooks:
        console.print(_comparison(report))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _times(report: Report) -> Table:
    table = _table(
        "\nmean / p50 / p90 / p99",
        "TTFT s",
        "TPOT ms",
        "E2E s",
        *(f"goodput {slo}" for slo in report.plan.slos),
        "failed",
    )
    for row in report.rows:
        summary = row.summary
        table.add_row(
            row.policy,
            _spread(summary.ttft, 1.0, 2),
            _spread(summary.tpot, 1000.0, 1),
            _spread(summary.e2e, 1.0, 2),
            *(f"{100 * share:.1f} %" for share in summary.goodput),
            str(summary.failed),
        )
    return table


def _work(report: Report) -> Table:
    table = _table(
        "\nwork",
        "hit rate",
        "of pooled",
        "prefilled Mtok",
        "load max/mean",
        "busy max/mean",
        "preempted",
        "TTFT misjudged",
        "decisions/s",
        "requests / CPU s",
    )
    for row in report.rows:
        summary = row.summary
        table.add_row(
            row.policy,
            f"{100 * summary.hit_rate:.1f} %",
            _number(row.hit_of_bound),
            f"{summary.prefilled / 1e6:.2f}",
            f"{summary.load_spread:.2f}",
            f"{summary.busy_spread:.2f}",
            str(summary.preempted),
            "-" if summary.prediction_error is None else f"{100 * summary.prediction_error:.0f} %",
            f"{summary.decisions_per_s:,.0f}",
            f"{summary.requests_per_s:,.0f}",
        )
    return table


def _failures(report: Report) -> Table:
    names = sorted({name for row in report.rows for name in row.summary.failures})
    table = _table("\nfailed requests, all seeds, by why", *map(failure, names))
    for row in report.rows:
        table.add_row(row.policy, *(str(row.summary.failures.get(name, 0)) for name in names))
    return table


def _reasons(report: Report) -> Table:
    names = sorted({reason for row in report.rows for reason in row.summary.reasons})
    table = _table("\ndecisions by reason", *names)
    for row in report.rows:
        table.add_row(row.policy, *(str(row.summary.reasons.get(name, 0)) for name in names))
    return table


def _comparison(report: Report) -> Table:
    table = _table(
        f"\nagainst {report.base}, paired, with 95 % interval",
        "mean TTFT",
        "mean E2E",
        "TTFT / pooled",
        "regret",
        "/ clairvoyant",
    )
    for row in sorted(report.rows, key=_by_ttft):
        table.add_row(
            row.policy,
            _ratio(row.ttft_ratio),
            _ratio(row.e2e_ratio),
            _number(row.over_bound),
            _number(row.regret),
            _number(row.summary.over_clairvoyant),
        )
    return table


def _by_ttft(row: Row) -> float:
    """Who has answered nothing comes last."""
    return math.inf if math.isnan(row.summary.ttft.mean) else row.summary.ttft.mean


def _spread(spread: Spread, scale: float, digits: int) -> str:
    values = (spread.mean, spread.p50, spread.p90, spread.p99)
    if math.isnan(spread.mean):
        return "-"
    return " / ".join(f"{value * scale:.{digits}f}" for value in values)


def _ratio(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"
