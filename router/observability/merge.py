"""Metrics pages of several workers as one. PURE.

Counters and histograms are summed. A gauge is what its name says of all workers together: what they have under way is
summed, what can only be as good as the worst of them is the least, and everything else, which all of them see alike,
the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_SUMMED = frozenset(
    {
        "kvrouter_active_requests",
        "kvrouter_inflight_requests",
        "kvrouter_inflight_prefill_tokens",
        "kvrouter_inflight_tokens",
        "kvrouter_index_owned_endpoints",
    }
)
_LEAST = frozenset({"kvrouter_index_exact", "kvrouter_endpoint_up"})

Page = Mapping[str, float]
"""Series as written (name and labels) -> value, in the page's order."""


class Merged:
    """What pages add up to, in the order in which their families first come."""

    def __init__(self) -> None:
        self._heads: dict[str, list[str]] = {}
        self._kinds: dict[str, str] = {}
        self._values: dict[str, dict[str, float]] = {}

    def add(self, page: bytes, *, counts_only: bool = False) -> None:
        """`counts_only`: of a worker that is gone, whose gauges say nothing any more."""
        family = ""
        for line in page.decode("utf-8", "replace").splitlines():
            if line.startswith("#"):
                words = line.split(" ", 3)
                if len(words) >= 4 and words[1] in ("HELP", "TYPE"):
                    family = words[2]
                    if words[1] == "TYPE":
                        self._kinds[family] = words[3]
                    head = self._heads.setdefault(family, [])
                    if line not in head:
                        head.append(line)
                continue
            series, _, text = line.rpartition(" ")
            if series and not (counts_only and self._kinds.get(family) == "gauge"):
                self._take(family, series, float(text))

    def _take(self, family: str, series: str, value: float) -> None:
        values = self._values.setdefault(family, {})
        known = values.get(series)
        if known is None:
            values[series] = value
        elif self._kinds.get(family) != "gauge" or family in _SUMMED:
            values[series] = known + value
        elif family in _LEAST:
            values[series] = min(known, value)
        else:
            values[series] = max(known, value)

    def render(self) -> bytes:
        lines: list[str] = []
        for family, head in self._heads.items():
            lines += head
            lines += (f"{series} {value!r}" for series, value in self._values.get(family, {}).items())
        return ("\n".join(lines) + "\n").encode()


def merge(pages: Sequence[bytes], departed: Iterable[bytes] = ()) -> bytes:
    """One page for all; of `departed`, the last pages of workers that are gone, only what was counted."""
    merged = Merged()
    for page in pages:
        merged.add(page)
    for page in departed:
        merged.add(page, counts_only=True)
    return merged.render()


def counts(pages: Iterable[bytes]) -> bytes:
    """What these pages counted, as one page."""
    return merge((), pages)
