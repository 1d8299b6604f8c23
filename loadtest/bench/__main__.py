"""``make bench``: every benchmark, one after the other."""

from __future__ import annotations

import subprocess
import sys

from rich.console import Console

BENCHES = (
    "kvindex_bench",
    "scheduling_bench",
    "tokenization_bench",
    "relay_bench",
    "serving_bench",
    "sharing_bench",
    "planning_bench",
)


def main() -> int:
    """A process each, so that none warms or burdens another. Returns how many failed."""
    console = Console()
    failed = 0
    for bench in BENCHES:
        console.rule(f"python -m loadtest.bench.{bench}")
        failed += subprocess.run([sys.executable, "-m", f"loadtest.bench.{bench}"], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
