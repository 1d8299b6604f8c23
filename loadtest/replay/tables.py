"""Tables on a terminal whose cells are never cut: columns that find no place stand in a further table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_BETWEEN = 2
"""Blanks between two columns."""


def print_table(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """`head`: what the first column names, which is repeated in every table, and what the others tell."""
    console.print(Text(title, style="bold"), soft_wrap=True)
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    for number, columns in enumerate(parted(widths, console.width)):
        if number:
            console.print()
        shown = (0, *columns)
        table = Table(box=None, pad_edge=False, width=sum(widths[n] + _BETWEEN for n in shown) - _BETWEEN)
        for n in shown:
            table.add_column(Text(head[n]), justify="right" if n else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[n]) for n in shown))
        console.print(table, crop=False, soft_wrap=True)


def parted(widths: Sequence[int], room: int) -> list[list[int]]:
    """Columns from the second on, in order, of tables that begin with the first one and are no wider than `room`,
    where one column of numbers beside the first is not."""
    tables: list[list[int]] = [[]]
    taken = widths[0]
    for number, width in enumerate(widths[1:], start=1):
        if tables[-1] and taken + _BETWEEN + width > room:
            tables.append([])
            taken = widths[0]
        tables[-1].append(number)
        taken += _BETWEEN + width
    return tables
