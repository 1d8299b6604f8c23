"""The filter reads what a full parser reads, of the wanted names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.wire.prometheus import MetricFilter, Sample

FIXTURES = os.environ.get("KVROUTER_FIXTURES")


def reference(page: str, names: set[str]) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    return comparable(
        Sample(sample.name, sample.labels, float(sample.value))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in names
    )


def comparable(samples: Iterable[Sample]) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    return sorted((s.name, tuple(sorted(s.labels.items())), repr(s.value)) for s in samples)


def pages() -> list[Path]:
    return sorted(Path(FIXTURES, "metrics").glob("*.txt")) if FIXTURES else []


@pytest.mark.skipif(not FIXTURES, reason="KVROUTER_FIXTURES does not name a folder of recorded pages")
def test_recorded_pages_read_as_the_reference_parser_reads_them() -> None:
    found = pages()
    assert found
    for path in found:
        page = path.read_text()
        names = {sample.name for family in text_string_to_metric_families(page) for sample in family.samples}
        assert comparable(MetricFilter(names).read(page)) == reference(page, names), path.name


LABELS = st.text(
    alphabet=st.one_of(st.sampled_from('a1 \\"\n{},=#\u2028\x85'), st.characters(codec="utf-8")), max_size=8
)
VALUES = st.floats(allow_nan=True, allow_infinity=True)


@given(st.dictionaries(st.tuples(LABELS, LABELS), VALUES, max_size=5), st.dictionaries(LABELS, VALUES, max_size=3))
def test_pages_written_by_the_reference_library_come_back_whole(
    gauges: dict[tuple[str, str], float], other: dict[str, float]
) -> None:
    registry = CollectorRegistry()
    wanted = Gauge("wanted", "help with \\ and\nmore wanted 1", ["first", "second"], registry=registry)
    for (first, second), value in gauges.items():
        wanted.labels(first, second).set(value)
    unwanted = Gauge("wanted_not", "h", ["first"], registry=registry)
    for first, value in other.items():
        unwanted.labels(first).set(value)
    Counter("requests", "h", registry=registry).inc(3)
    page = generate_latest(registry).decode()

    read = MetricFilter(["wanted", "requests_total"]).read(page)

    expected = [("wanted", {"first": a, "second": b}, repr(value)) for (a, b), value in gauges.items()]
    assert [(s.name, dict(s.labels), repr(s.value)) for s in read if s.name == "wanted"] == expected
    assert [s.value for s in read if s.name == "requests_total"] == [3.0]


BLANK = st.sampled_from(["", " ", "\t", "  "])


@given(BLANK, BLANK, BLANK, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", " 1700000000000"]), st.booleans())
def test_blanks_timestamps_and_line_ends_are_read_as_the_reference_parser_reads_them(
    before: str, inner: str, after: str, end: str, timestamp: str, trailing_comma: bool
) -> None:
    comma = "," if trailing_comma else ""
    page = (
        f'{before}wanted{inner}{{{inner}a{inner}={inner}"x,}}"{inner},{inner}b="2"{comma}{inner}}}{inner} '
        f"1.5{timestamp}{after}{end}"
        f"{before}wanted 2{timestamp}{after}{end}# wanted 3{end}unwanted 4{end}"
    )
    assert comparable(MetricFilter(["wanted"]).read(page)) == reference(page, {"wanted"})


@pytest.mark.parametrize(
    "line",
    [
        "wanted",
        "wanted ",
        'wanted{a="1" 2',
        'wanted{a="1}',
        'wanted{a="1",a="2"} 3',
        'wanted{a="1"b="2"} 3',
        "wanted{a=1} 3",
        'wanted{0a="1"} 3',
        "wanted 1_000",
        "wanted one",
        'wanted{a="1"} 3 4 5',
    ],
)
def test_a_malformed_line_hides_no_other(line: str) -> None:
    samples = MetricFilter(["wanted"]).read(f'wanted{{n="1"}} 1\n{line}\nwanted{{n="2"}} 2\n')
    assert [sample.value for sample in samples] == [1.0, 2.0]


def test_special_values() -> None:
    samples = MetricFilter(["w"]).read("w +Inf\nw -Inf\nw NaN\nw 1e3\n")
    assert [s.value for s in samples[:2]] == [math.inf, -math.inf]
    assert math.isnan(samples[2].value)
    assert samples[3].value == 1000.0


def test_a_name_is_never_cut_to_find_a_value() -> None:
    assert MetricFilter(["w"]).read('w2\nw2 3\nw2{a="1"} 3\n') == []


@given(st.text())
def test_no_page_raises(page: str) -> None:
    MetricFilter(["w"]).read(page + "\nw" + page)
