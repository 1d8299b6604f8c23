"""``kvrouter replay --study``: runs a study with a line a run, and prints its tables."""

from __future__ import annotations

from pathlib import Path

import typer

from loadtest.replay.study import Point, read_study, run_study
from loadtest.replay.study_tables import markdown
from router import plain_yaml
from router.errors import ConfigError


def run(study: Path, traces: Path, results: Path, jobs: int) -> None:
    """Of policies of routing, or of laws of scaling where the file names some. Raises `ConfigError`."""
    if _of_laws(study):
        _scaling(study, results, jobs)
        return

    def progress(point: Point, policy: str, seed: int, done: int, total: int) -> None:
        typer.echo(f"{done}/{total}  {point.group}: {point.name}, {policy}, seed {seed}", err=True)

    asked = read_study(study, traces)
    typer.echo(markdown(run_study(asked, results, jobs, progress), asked.base))


def _of_laws(path: Path) -> bool:
    try:
        document = plain_yaml.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--study: {path} cannot be read ({error.strerror}): name a YAML file") from None
    except (UnicodeDecodeError, plain_yaml.NotYaml) as error:
        raise ConfigError(f"--study: {path} is no YAML ({error}): mend the file") from None
    return isinstance(document, dict) and "laws" in document


def _scaling(path: Path, results: Path, jobs: int) -> None:
    try:
        from loadtest.replay.scaling import study, study_tables
    except ImportError as error:
        raise ConfigError(
            f"--study: laws of scaling need {error.name}, which is not installed: pip install 'kvrouter[planner]'"
        ) from None

    def progress(line: str) -> None:
        typer.echo(line, err=True)

    asked = study.read_study(path)
    typer.echo(study_tables.markdown(study.run_study(asked, results, jobs, progress)))
