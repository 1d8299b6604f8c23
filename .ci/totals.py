"""Adds up JUnit reports into one closing line; a report that is missing or empty counts as a failure."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(paths: list[str]) -> int:
    """The exit status: 0 only when every report is there, ran something, and nothing failed."""
    passed = failed = skipped = 0
    for path in map(Path, paths):
        suites = list(ElementTree.parse(path).getroot().iter("testsuite")) if path.exists() else []
        ran = sum(int(suite.get("tests", 0)) for suite in suites)
        bad = sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors"))
        out = sum(int(suite.get("skipped", 0)) for suite in suites)
        if ran - out <= 0:
            sys.stdout.write(f"no test ran for {path.name}\n")
            bad += 1
            ran += 1
        passed += max(0, ran - bad - out)
        failed += bad
        skipped += out
    sys.stdout.write(f"{passed} passed, {failed} failed, {skipped} skipped\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
