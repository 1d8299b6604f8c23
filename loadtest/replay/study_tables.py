"""Tables of a study: every point's figures, and geometric means over points, paired over seeds. PURE.

Intervals are Student's, 95 %, over seeds: of each seed one ratio (of several points their geometric mean), since
within a seed all policies met the same arrivals. They are there from two seeds on, and worth something from five.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from loadtest.replay.compare import Ratio
from loadtest.replay.policies.catalogue import find
from loadtest.replay.results import Summary
from loadtest.replay.study import Kept

_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_T_MANY = 2.09

MEASURES: Mapping[str, Callable[[Summary], float]] = {
    "TTFT": lambda s: s.ttft.mean,
    "TTFT p99": lambda s: s.ttft.p99,
    "E2E": lambda s: s.e2e.mean,
    "TPOT": lambda s: s.tpot.mean,
    "hit rate": lambda s: s.hit_rate,
    "goodput": lambda s: s.goodput[0],
}

Table = Mapping[str, Mapping[str, Sequence[Summary]]]
"""Point -> policy -> summaries, in the order of seeds."""


def arranged(kept: Sequence[Kept]) -> dict[str, dict[str, list[Summary]]]:
    table: dict[str, dict[str, list[Summary]]] = {}
    for run in sorted(kept, key=lambda run: run.seed):
        point = f"{run.group}: {run.point}" if run.point else run.group
        table.setdefault(point, {}).setdefault(run.policy, []).append(run.summary)
    return table


def geometric(logs: Sequence[float]) -> Ratio:
    """`logs`: logarithms of one ratio a seed. Without a second seed the interval is all there is."""
    count = len(logs)
    mean = math.fsum(logs) / count
    if count < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in logs) / (count - 1) / count)
    reach = _T.get(count - 1, _T_MANY) * deviation
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def over(
    table: Table, points: Sequence[str], policy: str, base: str, measure: Callable[[Summary], float]
) -> Ratio | None:
    """`base` over `policy`: the geometric mean over points, paired by seed. None where one of them is missing or 0."""
    logs: list[list[float]] = []
    for point in points:
        own, other = table[point].get(base), table[point].get(policy)
        if not own or not other:
            return None
        pairs = [(measure(a), measure(b)) for a, b in zip(own, other, strict=False)]
        # Where nothing was answered there is no mean.
        if not all(a > 0.0 and b > 0.0 for a, b in pairs):
            return None
        logs.append([math.log(a / b) for a, b in pairs])
    count = min(map(len, logs), default=0)
    if not count:
        return None
    return geometric([math.fsum(column[seed] for column in logs) / len(logs) for seed in range(count)])


def markdown(kept: Sequence[Kept], base: str) -> str:
    """The study as Markdown."""
    table = arranged(kept)
    lines: list[str] = []
    for point, policies in table.items():
        lines += [f"### {point}", "", *_point(policies, base), ""]
    groups = dict.fromkeys(run.group for run in kept)
    for group in groups:
        points = [point for point in table if point == group or point.startswith(f"{group}: ")]
        if len(points) > 1:
            lines += [f"### {group}: geometric means over {len(points)} points", "", *_ratios(table, points, base), ""]
    if len(groups) > 1:
        lines += [f"### all: geometric means over {len(table)} points", "", *_ratios(table, list(table), base), ""]
    if len(table) > 1:
        lines += [f"### {base} over the best other policy at each point", "", *_best(table, base), ""]
    return "\n".join(lines)


def _point(policies: Mapping[str, Sequence[Summary]], base: str) -> Iterator[str]:
    yield "| policy | TTFT mean | p99 | TPOT ms | E2E | goodput | hit rate | load max/mean | TTFT of it | E2E of it |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    alone = {"": policies}
    for policy, runs in policies.items():
        ttft, e2e = (over(alone, [""], policy, base, MEASURES[name]) for name in ("TTFT", "E2E"))
        failed = sum(run.failed for run in runs)
        yield _row(
            policy + (f" ({failed} failed)" if failed else ""),
            _shown(_mean(runs, MEASURES["TTFT"]), 3),
            _shown(_mean(runs, MEASURES["TTFT p99"]), 2),
            _shown(1000 * _mean(runs, MEASURES["TPOT"]), 1),
            _shown(_mean(runs, MEASURES["E2E"]), 2),
            "/".join(
                f"{math.fsum(run.goodput[i] for run in runs) / len(runs):.3f}" for i in range(len(runs[0].goodput))
            ),
            f"{_mean(runs, MEASURES['hit rate']):.3f}",
            f"{_mean(runs, lambda run: run.load_spread):.2f}",
            "" if policy == base else told(ttft),
            "" if policy == base else told(e2e),
        )


def _ratios(table: Table, points: Sequence[str], base: str) -> Iterator[str]:
    """`base` over each of the others."""
    yield _row(f"{base} over", *MEASURES)
    yield "|---|" + "---|" * len(MEASURES)
    policies = dict.fromkeys(policy for point in points for policy in table[point])
    for policy in policies:
        if policy != base and all(policy in table[point] for point in points):
            yield _row(policy, *(told(over(table, points, policy, base, measure)) for measure in MEASURES.values()))


def _best(table: Table, base: str) -> Iterator[str]:
    """`base` over whoever is best there, measure by measure; bounds are nobody's policy."""
    measures = ("TTFT", "TTFT p99", "E2E")
    yield _row("", *measures)
    yield "|---|" + "---|" * len(measures)
    for point, policies in table.items():
        others = [policy for policy in policies if policy != base and not find(policy).pooled]
        cells = []
        for name in measures:
            ratios = [(over(table, [point], policy, base, MEASURES[name]), policy) for policy in others]
            found = [(ratio, policy) for ratio, policy in ratios if ratio is not None]
            ratio, policy = max(found, key=lambda each: each[0].value, default=(None, ""))
            cells.append(f"{told(ratio)} {policy}".rstrip())
        yield _row(point, *cells)


def told(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    interval = "" if math.isinf(ratio.high) else f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    return f"{ratio.value:.3f}{interval}"


def _mean(runs: Sequence[Summary], measure: Callable[[Summary], float]) -> float:
    return math.fsum(map(measure, runs)) / len(runs)


def _shown(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
