"""The table of field failures and the tests it names agree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| ([A-Z]{3}-\d{2}) \| ([^|]+) \| (?:`([^`|]+)`|([^`|]+)) \|$")
ID = re.compile(r"test_([a-z]{3}_\d{2})_")


def rows() -> dict[str, tuple[str | None, str | None]]:
    """Id -> (test, reason why there is none)."""
    lines = (ROOT / "docs/field-failures.md").read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| ") and not line.startswith("| id ")]
    found = [ROW.fullmatch(line) for line in table]
    assert None not in found, [line for line, row in zip(table, found, strict=True) if row is None]
    entries = [(row[1], (row[3], row[4])) for row in found if row is not None]
    assert len(dict(entries)) == len(entries)
    return dict(entries)


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_case_has_a_row() -> None:
    assert len(rows()) == 87


@pytest.mark.parametrize(("case", "named"), [(case, test) for case, (test, _) in rows().items() if test])
def test_the_test_a_row_names_exists(case: str, named: str) -> None:
    path, _, name = named.partition("::")
    assert name in functions(ROOT / path)
    if path.startswith("tests/field/"):
        assert name.startswith(f"test_{case.lower().replace('-', '_')}_")


def test_a_row_without_a_test_gives_its_reason() -> None:
    assert all(reason.startswith("not yet: ") for test, reason in rows().values() if test is None and reason)


def test_every_field_test_is_of_a_case_in_the_table() -> None:
    for path in (ROOT / "tests/field").glob("test_*.py"):
        for name in functions(path):
            if name.startswith("test_"):
                found = ID.match(name)
                assert found is not None, name
                assert found[1].upper().replace("_", "-") in rows()
