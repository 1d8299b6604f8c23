"""Plots of fleets over time. Needs pygal, which comes with ``kvrouter[loadtest]``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pygal  # type: ignore[import-untyped]

from loadtest.replay.charts import add_line, new_chart, svg
from loadtest.replay.scaling.run import Outcome
from loadtest.replay.scaling.simulation import Step


def charts(outcomes: Sequence[Outcome]) -> list[str]:
    """SVG elements: engines that serve over time, then cost beside attainment."""
    fleets = new_chart(pygal.XY, "Engines that serve", show_dots=False, x_title="s", y_title="engines")
    for outcome in outcomes:
        add_line(fleets, outcome.law, _stairs(outcome.steps))
    hours = new_chart(pygal.HorizontalBar, "Engine-hours", show_legend=False, print_values=True, x_title="h")
    hours.value_formatter = lambda value: f"{value:.3g}"
    hours.x_labels = [outcome.law for outcome in outcomes][::-1]
    hours.add("", [outcome.engine_hours for outcome in outcomes][::-1])
    return [svg(fleets), svg(hours)]


def course(title: str, lines: Mapping[str, Sequence[tuple[float, float]]], x_title: str) -> str:
    """Values over time as stairs."""
    chart = new_chart(pygal.XY, title, show_dots=False, x_title=x_title)
    for name, points in lines.items():
        stairs: list[tuple[float, float]] = []
        for at, value in points:
            if stairs:
                stairs.append((at, stairs[-1][1]))
            stairs.append((at, value))
        add_line(chart, name, stairs)
    return svg(chart)


def _stairs(steps: Sequence[Step]) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for step in steps:
        if points:
            points.append((step.at, points[-1][1]))
        points.append((step.at, step.ready))
    return points
