"""Digests of source text: what a run that is kept depends on, so that it is run again when that changes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import loadtest.replay

WORLD = (
    *(f"loadtest/replay/{name}.py" for name in ("cache", "csv_lines", "engine", "fleet", "inputs", "job")),
    *(f"loadtest/replay/{name}.py" for name in ("json_lines", "lines", "plan", "results", "routing", "simulation")),
    *(f"loadtest/replay/{name}.py" for name in ("synthetic", "workload")),
    "loadtest/replay/policies",
    "loadtest/simulator/timing.py",
    "loadtest/simulator/profiles.yaml",
    "kvindex/memory.py",
    "router/inflight.py",
)
"""What every replay is driven by."""
PRODUCT = (*WORLD, "router/capacity", "router/plugins", "router/scheduling")
"""The same where the router's own policy routes."""


@cache
def digest(parts: tuple[str, ...]) -> str:
    """Of files and of all Python files in folders, named from the root of the tree."""
    root = Path(loadtest.replay.__file__).parents[2]
    whole = hashlib.sha256()
    for part in parts:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            whole.update(file.read_bytes())
    return whole.hexdigest()
