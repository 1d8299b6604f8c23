"""Verdict: whether policies that are far apart in a replay stand in the same order over HTTP. PURE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

import msgspec
from rich.table import Table


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the requests that count. Times in seconds."""

    requests: int
    ttft_s: float
    e2e_s: float
    hit_rate: float
    """Of prompt tokens, 0..1."""
    failed: int = 0
    late_s: float = 0.0
    """By how much the client sent the latest hundredth too late."""


class Both(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    replay: Figures
    http: Figures


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Two policies that are far apart in the replay."""

    measure: str
    better: str
    worse: str
    replay: float
    """How many times the better one's time the worse one's is."""
    http: float

    @property
    def kept(self) -> bool:
        return self.http > 1.0


MEASURES: Mapping[str, str] = MappingProxyType({"TTFT": "ttft_s", "E2E": "e2e_s"})


def pairs(outcomes: Sequence[Both], margin: float) -> Iterator[Pair]:
    """Pairs more than `margin` apart in the replay: 0.15 means that one takes 1.15 times the other's time."""
    for measure, field in MEASURES.items():
        for one, other in combinations(outcomes, 2):
            better, worse = sorted((one, other), key=lambda each: float(getattr(each.replay, field)))
            ratio = getattr(worse.replay, field) / getattr(better.replay, field)
            if ratio > 1.0 + margin:
                http = getattr(worse.http, field) / getattr(better.http, field)
                yield Pair(measure=measure, better=better.policy, worse=worse.policy, replay=ratio, http=http)


def complaints(outcomes: Sequence[Both], margin: float) -> list[str]:
    """What speaks against the replay's order, a sentence each."""
    found = [f"{each.policy}: {each.http.failed} requests failed" for each in outcomes if each.http.failed]
    found += [
        f"{pair.measure}: {pair.worse} takes {pair.replay:.2f} times what {pair.better} does in the replay, "
        f"{pair.http:.2f} times over HTTP"
        for pair in pairs(outcomes, margin)
        if not pair.kept
    ]
    return found


def tables(outcomes: Sequence[Both], margin: float) -> tuple[Table, Table]:
    """Figures of each policy, and the pairs that are far apart."""
    figures = Table(title="means, in the replay and over HTTP")
    for column in ("policy", "TTFT ms", "HTTP", "E2E ms", "HTTP", "hit rate", "HTTP", "requests", "sent late ms"):
        figures.add_column(column, justify="left" if column == "policy" else "right")
    for each in outcomes:
        replay, http = each.replay, each.http
        figures.add_row(
            each.policy,
            f"{1000 * replay.ttft_s:.0f}",
            f"{1000 * http.ttft_s:.0f}",
            f"{1000 * replay.e2e_s:.0f}",
            f"{1000 * http.e2e_s:.0f}",
            f"{replay.hit_rate:.3f}",
            f"{http.hit_rate:.3f}",
            f"{http.requests}" + (f" ({http.failed} failed)" if http.failed else ""),
            f"{1000 * http.late_s:.0f}",
        )
    order = Table(title=f"pairs more than {100 * margin:g} % apart in the replay")
    for column in ("", "better", "worse", "replay", "HTTP", "order"):
        order.add_column(column, justify="right" if column in ("replay", "HTTP") else "left")
    for pair in pairs(outcomes, margin):
        kept = "kept" if pair.kept else "REVERSED"
        order.add_row(pair.measure, pair.better, pair.worse, f"{pair.replay:.2f}", f"{pair.http:.2f}", kept)
    return figures, order
