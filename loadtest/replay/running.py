"""Running what was asked for with a progress bar, and giving out what came of it: tables, JSON, a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loadtest.replay.asking import check_plan, check_run, check_workload, unseen
from loadtest.replay.page import chart_maker, page
from loadtest.replay.plan import Plan, load, run_all
from loadtest.replay.policies.catalogue import find
from loadtest.replay.report import as_json, make_report
from loadtest.replay.results import Run
from loadtest.replay.view import show
from loadtest.replay.workload import Workload
from router import outputs
from router.errors import ConfigError


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures go besides the terminal. With `json` on standard output, nothing else is written there."""

    json: Path | None
    html: Path | None
    command: str
    """What was typed, for the page."""

    @property
    def to_pipe(self) -> bool:
        return self.json == outputs.STANDARD_OUTPUT

    def give_json(self, content: bytes) -> None:
        if self.to_pipe:
            typer.echo(content, nl=False)
        elif self.json is not None:
            outputs.write(self.json, content)


def compare(plan: Plan, baseline: str | None, out: Outputs, jobs: int) -> int:
    """Policies of routing. The exit code: 1 where no request was answered under any of them. Raises `ConfigError`."""
    check_plan(plan, baseline)
    charts = None if out.html is None else chart_maker()
    workload = load(plan, outputs.remark)
    check_workload(plan, workload)
    runs = _run(plan, workload, jobs)
    for run in runs:
        check_run(plan, run)
    for remark in unseen(plan, runs):
        outputs.remark(remark)
    report = make_report(plan, workload, runs, baseline or plan.policies[0])
    if not out.to_pipe:
        show(report, _console())
    out.give_json(as_json(report))
    if out.html is not None and charts is not None:
        outputs.write(out.html, page(report, runs, out.command, charts).encode())
    return 1 if all(math.isnan(row.summary.e2e.mean) for row in report.rows) else 0


_LONGEST_STARTUP_S = 86_400.0


def scale(plan: Plan, laws: Sequence[str], startup_s: float, preempt: bool, out: Outputs, jobs: int) -> None:
    """Laws of scaling instead of policies of routing. Raises `ConfigError`."""
    try:
        from loadtest.replay.scaling import run, view
    except ImportError as error:
        raise ConfigError(
            f"--scaling needs {error.name}, which is not installed: pip install 'kvrouter[planner]'"
        ) from None
    if not 1.0 <= startup_s <= _LONGEST_STARTUP_S:
        raise ConfigError(
            f"--startup {startup_s:g}: give a number of seconds from 1 to {_LONGEST_STARTUP_S:g}, like 90"
        )
    find(plan.policies[0])
    charts = None if out.html is None else view.chart_maker()
    disaggregated = bool(plan.prefill or plan.decode)
    asked = run.Scaling(
        plan=plan, laws=list(dict.fromkeys(laws)), startup_s=startup_s, disaggregated=disaggregated, preempt=preempt
    )
    outcomes = run.run_laws(asked, jobs, remarked=outputs.remark)
    if not out.to_pipe:
        view.show(asked, outcomes, _console())
    out.give_json(view.as_json(asked, outcomes))
    if out.html is not None and charts is not None:
        head, body = view.table_of(outcomes)
        title = f"Scaling under {' + '.join(plan.traces)}"
        outputs.write(out.html, view.page(title, out.command, head, body, charts(outcomes)).encode())


def _console() -> Console:
    console = Console()
    # Into a file or a pipe: no width is known, and a folded table is hard to read and to search.
    return console if console.is_terminal else Console(width=200)


def _run(plan: Plan, workload: Workload, jobs: int) -> list[Run]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        each = len(workload.requests)
        task = bar.add_task("replay", total=each * len(plan.policies) * len(plan.seeds))
        done: dict[tuple[str, int], int] = {}

        def progress(policy: str, seed: int, count: int) -> None:
            done[policy, seed] = count
            bar.update(task, completed=sum(done.values()), description=f"{policy}, seed {seed}")

        return run_all(plan, workload, jobs, progress)
