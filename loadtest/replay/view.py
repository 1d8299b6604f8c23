"""The tables of a report on a terminal."""

from __future__ import annotations

import math

from rich.console import Console
from rich.text import Text

from loadtest.replay.compare import Ratio
from loadtest.replay.report import Report, Row, failure
from loadtest.replay.results import Spread
from loadtest.replay.tables import print_table


def show(report: Report, console: Console) -> None:
    console.print(Text.assemble((report.title, "bold"), f": {report.situation}"))
    _times(report, console)
    _work(report, console)
    if any(row.summary.failed for row in report.rows):
        _failures(report, console)
    if any(len(row.summary.reasons) > 1 for row in report.rows):
        _reasons(report, console)
    if len(report.rows) > 1 or report.plan.outlooks:
        _comparison(report, console)


def _times(report: Report, console: Console) -> None:
    goodputs = [f"goodput {slo}" for slo in report.plan.slos]
    rows = [
        (
            row.policy,
            _spread(row.summary.ttft, 1.0, 2),
            _spread(row.summary.tpot, 1000.0, 1),
            _spread(row.summary.e2e, 1.0, 2),
            *(f"{100 * share:.1f} %" for share in row.summary.goodput),
            str(row.summary.failed),
        )
        for row in report.rows
    ]
    print_table(
        console, "\nmean / p50 / p90 / p99", ("policy", "TTFT s", "TPOT ms", "E2E s", *goodputs, "failed"), rows
    )


def _work(report: Report, console: Console) -> None:
    head = (
        "policy",
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
    rows = []
    for row in report.rows:
        summary = row.summary
        rows.append(
            (
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
        )
    print_table(console, "\nwork", head, rows)


def _failures(report: Report, console: Console) -> None:
    names = sorted({name for row in report.rows for name in row.summary.failures})
    rows = [(row.policy, *(str(row.summary.failures.get(name, 0)) for name in names)) for row in report.rows]
    print_table(console, "\nfailed requests, all seeds, by why", ("policy", *map(failure, names)), rows)


def _reasons(report: Report, console: Console) -> None:
    names = sorted({reason for row in report.rows for reason in row.summary.reasons})
    rows = [(row.policy, *(str(row.summary.reasons.get(name, 0)) for name in names)) for row in report.rows]
    print_table(console, "\ndecisions by reason", ("policy", *names), rows)


def _comparison(report: Report, console: Console) -> None:
    rows = [
        (
            row.policy,
            _ratio(row.ttft_ratio),
            _ratio(row.e2e_ratio),
            _number(row.over_bound),
            _number(row.regret),
            _number(row.summary.over_clairvoyant),
        )
        for row in sorted(report.rows, key=_by_ttft)
    ]
    title = f"\nagainst {report.base}, paired, with 95 % interval"
    print_table(console, title, ("policy", "mean TTFT", "mean E2E", "TTFT / pooled", "regret", "/ clairvoyant"), rows)


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
