"""Tables fit the terminal by being parted, never by cutting what stands in them."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadtest.replay.tables import parted, print_table

HEAD = ("policy", "mean TTFT", "mean E2E", "regret")
ROWS = (
    ("default", "1.000 [1.000, 1.000]", "1.000 [1.000, 1.000]", "0.5"),
    ("a [bold] name that is long", "0.9", "0.8", "-"),
)


def shown(width: int) -> list[str]:
    out = io.StringIO()
    print_table(Console(file=out, width=width), "a title that is longer than some terminals", HEAD, ROWS)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_one_table_where_there_is_room() -> None:
    assert shown(100) == [
        "a title that is longer than some terminals",
        "policy                                 mean TTFT              mean E2E  regret",
        "default                     1.000 [1.000, 1.000]  1.000 [1.000, 1.000]     0.5",
        "a [bold] name that is long                   0.9                   0.8       -",
    ]


def test_columns_without_room_stand_in_a_further_table_under_the_same_names() -> None:
    assert shown(60) == [
        "a title that is longer than some terminals",
        "policy                                 mean TTFT",
        "default                     1.000 [1.000, 1.000]",
        "a [bold] name that is long                   0.9",
        "",
        "policy                                  mean E2E  regret",
        "default                     1.000 [1.000, 1.000]     0.5",
        "a [bold] name that is long                   0.8       -",
    ]


def test_nothing_is_cut_on_a_terminal_that_is_too_narrow_for_any_table() -> None:
    told = "\n".join(shown(10))
    assert all(cell in told for row in (HEAD, *ROWS) for cell in row)
    assert "\u2026" not in told


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12), st.integers(1, 120))
def test_every_column_stands_once_in_order_and_tables_fit_where_they_can(widths: list[int], room: int) -> None:
    tables = parted(widths, room)
    assert [n for columns in tables for n in columns] == list(range(1, len(widths)))
    for columns in tables:
        assert len(columns) == 1 or widths[0] + sum(widths[n] + 2 for n in columns) <= room
