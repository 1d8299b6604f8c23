"""A CSV of lengths: columns by name, every cell that is of no use named. PURE."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from loadtest.replay.lines import InputError, Line, Read, check

_COLUMNS = "timestamp (ms) or arrival_s, input_length, output_length, if wanted session and think (s)"


def csv_lines(path: Path, text: bytes) -> Read:
    """Columns by name, see `_COLUMNS`."""
    try:
        rows = csv.reader(io.StringIO(text.decode()), strict=True)
        names = [name.strip() for name in next(rows)]
        if not {"input_length", "output_length"} <= set(names) or not {"timestamp", "arrival_s"} & set(names):
            raise InputError(
                f"{path} is no JSON, and as CSV its first line must name the columns {_COLUMNS}, with commas between; "
                f"it names {', '.join(names)[:200]}"
            )
        lines = []
        for cells in rows:
            if any(map(str.strip, cells)):
                row = _Row(path, rows.line_num, names, cells)
                line = row.request()
                check(path, rows.line_num, line)
                lines.append(line)
    except UnicodeDecodeError:
        raise InputError(f"{path} is neither JSON lines nor CSV text: give one of them") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num}: {error}: mend the line or take it out") from None
    return Read(lines)


class _Row:
    """One row of a CSV: its cells by column, every one that is of no use an InputError that names it."""

    def __init__(self, path: Path, number: int, names: Sequence[str], cells: Sequence[str]) -> None:
        if len(cells) > len(names):
            raise InputError(
                f"{path}, line {number}: it has {len(cells)} cells for {len(names)} columns: "
                "write numbers without commas"
            )
        self._where = f"{path}, line {number}"
        self._cells = {name: cell.strip() for name, cell in zip(names, cells, strict=False)}

    def request(self) -> Line:
        in_seconds = bool(self._cells.get("arrival_s"))
        at = self._number("arrival_s") * 1000 if in_seconds else self._number("timestamp")
        return Line(
            timestamp=at,
            input_length=self._whole("input_length"),
            output_length=self._whole("output_length"),
            session=self._cells.get("session") or None,
            think=self._number("think") if self._cells.get("think") else None,
        )

    def _number(self, name: str) -> float:
        cell = self._cells.get(name, "")
        try:
            return float(cell)
        except ValueError:
            raise self._wrong(name, cell, "a number") from None

    def _whole(self, name: str) -> int:
        cell = self._cells.get(name, "")
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        # Spreadsheets and data frames write 1024.0 where a column has a gap.
        if not value.is_integer():
            raise self._wrong(name, cell, "a whole number")
        return int(value)

    def _wrong(self, name: str, cell: str, wanted: str) -> InputError:
        said = f"is {cell[:40]!r}" if cell else "is empty"
        return InputError(f"{self._where}: {name} {said}: give {wanted}, or take the line out")
