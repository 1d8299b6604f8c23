"""``kvrouter replay --study``: runs a study with a line a run, and prints its tables."""

from __future__ import annotations

from pathlib import Path

import typer

from loadtest.replay.study import Point, read_study, run_study
from loadtest.replay.study_tables import markdown


def run(study: Path, traces: Path, results: Path, jobs: int) -> None:
    """Raises `ConfigError`."""

    def progress(point: Point, policy: str, seed: int, done: int, total: int) -> None:
        typer.echo(f"{done}/{total}  {point.group}: {point.name}, {policy}, seed {seed}", err=True)

    asked = read_study(study, traces)
    typer.echo(markdown(run_study(asked, results, jobs, progress), asked.base))
