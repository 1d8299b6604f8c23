"""A `router.check.Report` as a table and sentences on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.check import EngineReport, Report


def show(report: Report, console: Console) -> None:
    """The table, then one line for each trouble and each note."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("endpoint", "role", "health", "version", "models", "blocks", "KV events", "tokens"):
        table.add_column(column, overflow="fold", no_wrap=column == "endpoint")
    for engine in report.engines:
        table.add_row(*(escape(cell) for cell in _row(engine)))
    console.print(table)
    for engine in report.engines:
        for trouble in engine.troubles:
            _line(console, "[red]trouble[/red]", f"{engine.id} {trouble}")
        for note in engine.notes:
            _line(console, "[yellow]note[/yellow]", f"{engine.id} {note}")
    for trouble in report.troubles:
        _line(console, "[red]trouble[/red]", trouble)
    for note in report.notes:
        _line(console, "[yellow]note[/yellow]", note)
    if report.good:
        console.print("[green]good[/green]: the router can serve with this configuration", highlight=False)


def _row(engine: EngineReport) -> tuple[str, ...]:
    blocks = "-"
    if engine.block_size is not None:
        blocks = f"{engine.num_blocks or '?'} x {engine.block_size}"
    shown = (engine.id, engine.role.value, engine.health, engine.version, ", ".join(engine.models), blocks)
    return tuple(cell or "-" for cell in (*shown, engine.events, engine.tokens))


def _line(console: Console, kind: str, text: str) -> None:
    console.print(f"{kind}: {escape(text)}", highlight=False, soft_wrap=True)
