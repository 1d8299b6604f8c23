"""The wanted samples of a Prometheus text page, without parsing the rest of it. PURE.

A vLLM page has about 900 samples in 90 kB of which a router reads a dozen; a full parser spends its time on the
histograms. Here a line is looked at only if it begins with a wanted name. Names, labels with their escapes, values
and timestamps follow the text exposition format 0.0.4
(https://prometheus.io/docs/instrumenting/exposition_formats/); metric names in quotes inside the braces, which
only names outside the legacy character set need, are not read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float


# Possessive throughout: "requests2" must not be read as the metric "requests" of value 2, nor a long malformed line
# be tried in many ways.
_LINE = re.compile(
    r"""[ \t]*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)
        [ \t]*+(?:\{(?P<labels>(?:[^"}]++|"(?:[^"\\]++|\\.)*+")*+)\})?+
        [ \t]*(?P<value>[^ \t]+)(?:[ \t]+[^ \t]+)?[ \t\r]*""",
    re.VERBOSE | re.DOTALL,
)
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]++|\\.)*+)"[ \t]*(?:,|$)', re.DOTALL)
_ESCAPE = re.compile(r'\\[\\n"]')
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


class MetricFilter:
    """Reads the samples with the given names from pages; build it once, it holds the names in searchable form."""

    __slots__ = ("_names", "_prefixes")

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        # The format allows blanks before a name: such lines are rare, so they are looked at closely, all of them.
        self._prefixes = (*self._names, " ", "\t")

    def read(self, page: str) -> list[Sample]:
        """The page's samples with a wanted name, in page order. A line that is no sample is left out: one malformed
        series must not hide the others."""
        prefixes, names = self._prefixes, self._names
        # Not splitlines(): label values may hold U+2028 and its like, and only "\n" ends a line.
        lines = [line for line in page.split("\n") if line.startswith(prefixes)]
        return [sample for line in lines if (sample := _parse(line, names)) is not None]


def _parse(line: str, names: frozenset[str]) -> Sample | None:
    found = _LINE.fullmatch(line)
    if found is None or found["name"] not in names:
        return None
    text = found["value"]
    if "_" in text:  # float() takes "1_0", the format does not
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    labels = _labels(found["labels"] or "")
    return None if labels is None else Sample(found["name"], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    text = text.strip(" \t")
    labels: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _LABEL.match(text, position)
        if found is None or found[1] in labels:
            return None
        value = found[2]
        labels[found[1]] = _ESCAPE.sub(lambda escape: _UNESCAPED[escape[0]], value) if "\\" in value else value
        position = found.end()
    return labels
