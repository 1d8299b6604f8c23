"""Histogram and the text form of vLLM's metrics page. PURE."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_TIME_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
TOKEN_COUNT_BUCKETS = (
    *(
        1.0,
        2.0,
        5.0,
        10.0,
        20.0,
        50.0,
        100.0,
        200.0,
        500.0,
        1000.0,
        2000.0,
        5000.0,
        10000.0,
        20000.0,
        50000.0,
        100000.0,
    ),
)
STEP_TOKEN_BUCKETS = tuple(float(2**n) for n in (0, *range(3, 15)))


class Histogram:
    """Counts by upper bound, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


def _labels(labels: Mapping[str, str]) -> str:
    def quoted(value: str) -> str:
        return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{name}="{quoted(labels[name])}"' for name in sorted(labels))


class Page:
    """A metrics page in the text format of Prometheus, built family by family."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]

    def sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        shown = _labels(labels)
        self._lines.append(f"{name}{{{shown}}} {float(value)!r}" if shown else f"{name} {float(value)!r}")

    def samples(self, name: str, kind: str, text: str, rows: Iterable[tuple[Mapping[str, str], float]]) -> None:
        self.family(name, kind, text)
        for labels, value in rows:
            self.sample(name, labels, value)

    def histograms(self, name: str, text: str, rows: Iterable[tuple[Mapping[str, str], Histogram]]) -> None:
        self.family(name, "histogram", text)
        for labels, histogram in rows:
            running = 0
            for bound, count in zip([*histogram.bounds, None], histogram.counts, strict=True):
                running += count
                le = "+Inf" if bound is None else repr(bound)
                self.sample(f"{name}_bucket", {**labels, "le": le}, running)
            self.sample(f"{name}_count", labels, running)
            self.sample(f"{name}_sum", labels, histogram.total)

    def render(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()
