"""The plots of the HTML report, as SVG without scripts or links. PURE, but that chart ids are random.

Needs pygal, which comes with ``kvrouter[loadtest]``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.etree.ElementTree import tostring

import pygal  # type: ignore[import-untyped]
from pygal.style import Style  # type: ignore[import-untyped]

from loadtest.replay.report import Report
from loadtest.replay.results import Result, Run, Window, quantile
from router.observability.events import Outcome

# pygal leaves an import hook of the old protocol behind, of which every later import would warn.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "PluginImportFixer"]

_POINTS = 120
_BINS = 40
_FLOOR_S = 1e-4
"""Times are drawn on a logarithmic axis, which has no zero."""

_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    font_family="system-ui, sans-serif",
    title_font_size=15,
    legend_font_size=12,
    label_font_size=11,
    major_label_font_size=11,
    value_font_size=10,
    stroke_width=2,
)


def charts(report: Report, runs: Sequence[Run]) -> list[str]:
    """SVG elements, in the order of the page."""
    window = report.plan.window
    by_policy = {row.policy: [run for run in runs if run.policy == row.policy] for row in report.rows}
    return [
        _distribution("Time to first token", by_policy, window, lambda r: r.ttft_s),
        _distribution("Time per output token after the first", by_policy, window, lambda r: r.tpot_s),
        _distribution("End to end", by_policy, window, lambda r: r.e2e_s),
        _over_time(by_policy, window),
        _bars("Mean TTFT", "s", {row.policy: row.summary.ttft.mean for row in report.rows}),
        _bars("Hit rate", "% of prompt tokens", {row.policy: 100 * row.summary.hit_rate for row in report.rows}),
        *(
            _bars(
                f"Goodput at {slo}", "% of requests", {row.policy: 100 * row.summary.goodput[i] for row in report.rows}
            )
            for i, slo in enumerate(report.plan.slos)
        ),
        _engines(by_policy),
    ]


def new_chart(kind: Callable[..., pygal.Graph], title: str, **more: object) -> pygal.Graph:
    return kind(
        title=title,
        js=[],
        style=_STYLE,
        width=760,
        height=460,
        explicit_size=False,
        disable_xml_declaration=True,
        legend_at_bottom=True,
        legend_at_bottom_columns=4,
        truncate_legend=-1,
        **more,
    )


def svg(chart: pygal.Graph) -> str:
    """Without what pygal adds for its interactive form: script, comments, and names that every chart would repeat."""
    root = chart.render_tree()
    for parent in root.iter():
        if parent.get("id", "").startswith("activate-serie"):
            del parent.attrib["id"]
        for child in list(parent):
            if not isinstance(child.tag, str) or child.tag.endswith("script"):
                parent.remove(child)
    return tostring(root, encoding="unicode")


def add_line(chart: pygal.Graph, name: str, points: Iterable[tuple[float, float]]) -> None:
    """To nine digits: over two values that differ by no more than their last bits, pygal looks for ticks for ever."""
    chart.add(name, [(float(f"{x:.9g}"), float(f"{y:.9g}")) for x, y in points])


def _counted(runs: Sequence[Run], window: Window) -> list[Result]:
    return [r for run in runs for r in run.results if r.outcome is Outcome.OK and window.counts(r)]


def _distribution(
    title: str,
    by_policy: Mapping[str, Sequence[Run]],
    window: Window,
    value: Callable[[Result], float | None],
) -> str:
    chart = new_chart(pygal.XY, title, logarithmic=False, show_dots=False, x_title="s or less (logarithmic)")
    marks: set[int] = set()
    for policy, runs in by_policy.items():
        ordered = sorted(v for result in _counted(runs, window) if (v := value(result)) is not None)
        if not ordered:
            continue
        shares = [i / _POINTS for i in range(_POINTS + 1)]
        points = [(math.log10(max(quantile(ordered, share), _FLOOR_S)), 100 * share) for share in shares]
        marks |= set(range(math.floor(points[0][0]), math.ceil(points[-1][0]) + 1))
        add_line(chart, policy, points)
    chart.x_labels = [{"value": mark, "label": f"{10.0**mark:g}"} for mark in sorted(marks)]
    chart.y_title = "% of requests"
    return svg(chart)


def _over_time(by_policy: Mapping[str, Sequence[Run]], window: Window) -> str:
    chart = new_chart(pygal.XY, "Mean TTFT by arrival", show_dots=False, x_title="arrival, s", y_title="s")
    for policy, runs in by_policy.items():
        results = _counted(runs, window)
        if not results:
            continue
        begin, end = min(r.at for r in results), max(r.at for r in results)
        width = max((end - begin) / _BINS, 1e-9)
        sums: dict[int, list[float]] = {}
        for result in results:
            if result.ttft_s is not None:
                sums.setdefault(min(int((result.at - begin) / width), _BINS - 1), []).append(result.ttft_s)
        means = [(begin + (b + 0.5) * width, math.fsum(v) / len(v)) for b, v in sorted(sums.items())]
        add_line(chart, policy, means)
    return svg(chart)


def _bars(title: str, unit: str, values: Mapping[str, float]) -> str:
    chart = new_chart(pygal.HorizontalBar, title, show_legend=False, print_values=True, x_title=unit)
    chart.value_formatter = lambda value: f"{value:.3g}"
    names = list(values)[::-1]
    chart.x_labels = names
    chart.add("", [None if math.isnan(values[name]) else values[name] for name in names])
    return svg(chart)


def _engines(by_policy: Mapping[str, Sequence[Run]]) -> str:
    chart = new_chart(pygal.Bar, "Time that each engine computed", x_title="engine", y_title="s")
    names = list(dict.fromkeys(share.endpoint for runs in by_policy.values() for run in runs for share in run.shares))
    chart.x_labels = names
    for policy, runs in by_policy.items():
        busy = dict.fromkeys(names, 0.0)
        for run in runs:
            for share in run.shares:
                busy[share.endpoint] += share.busy_s / len(runs)
        chart.add(policy, list(busy.values()))
    return svg(chart)
