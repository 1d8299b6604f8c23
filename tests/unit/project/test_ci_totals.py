"""CI's closing line adds up what really ran; a report that is missing fails it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "totals.py"
GOOD = '<testsuites><testsuite name="pytest" errors="0" failures="0" skipped="2" tests="12"/></testsuites>'
BAD = '<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="0" tests="5"/></testsuites>'
EMPTY = '<testsuites><testsuite name="pytest" errors="0" failures="0" skipped="3" tests="3"/></testsuites>'


@pytest.mark.parametrize(
    ("reports", "line", "code"),
    [
        ([GOOD, GOOD], "20 passed, 0 failed, 4 skipped", 0),
        ([GOOD, BAD], "12 passed, 3 failed, 2 skipped", 1),
        ([GOOD, None], "10 passed, 1 failed, 2 skipped", 1),
        ([GOOD, EMPTY], "10 passed, 1 failed, 5 skipped", 1),
    ],
)
def test_the_closing_line(reports: list[str | None], line: str, code: int, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.xml" for number in range(len(reports))]
    for path, text in zip(paths, reports, strict=True):
        if text is not None:
            path.write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == line
    assert done.returncode == code
