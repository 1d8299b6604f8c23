"""The HTML report: one file with tables and plots, without scripts and without anything fetched from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined

from loadtest.replay.compare import Ratio
from loadtest.replay.report import Report, failure
from loadtest.replay.results import Run, Spread
from router.errors import ConfigError

Charts = Callable[[Report, Sequence[Run]], list[str]]


def chart_maker() -> Charts:
    """Raises `ConfigError` when the plots' library is not installed."""
    try:
        from loadtest.replay.charts import charts
    except ImportError as error:
        raise ConfigError(
            f"--html needs {error.name}, which is not installed: pip install 'kvrouter[loadtest]', or use --json"
        ) from None
    return charts


def page(report: Report, runs: Sequence[Run], command: str, charts: Charts) -> str:
    """`command`: what makes this page again."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"spread": _spread, "ratio": _ratio, "number": _number, "failure": failure}
    template = environment.from_string(
        resources.files("loadtest.replay").joinpath("page.html.j2").read_text(encoding="utf-8")
    )
    return template.render(report=report, charts=charts(report, runs), command=command)


def _spread(spread: Spread, scale: float, digits: int) -> list[str]:
    values = (spread.mean, spread.p50, spread.p90, spread.p99)
    return ["" if math.isnan(value) else f"{value * scale:.{digits}f}" for value in values]


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _number(value: float | None, digits: int = 3) -> str:
    return "" if value is None or math.isnan(value) else f"{value:,.{digits}f}"
