"""Tables of a study of scaling laws, in Markdown. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from loadtest.replay.scaling.study import Found, Kept

_HEAD = (
    "| law | attained | engine-hours | / bound | / planner | changes | peak |",
    "|---|---|---|---|---|---|---|",
)


def markdown(found: Sequence[Found]) -> str:
    """A table for each scene. What is over the bound is over the cheapest of its runs that attains."""
    return "\n\n".join(_table(one) for one in found)


def _table(found: Found) -> str:
    scene = found.scene
    title = f"### {scene.day}, {scene.pool}" + (" (at equal engine-hours)" if scene.level else "")
    bounds = [one for one in found.bound if one is not None]
    bound = _hours(bounds) if len(bounds) == len(found.bound) else None
    mine = _hours(found.mine)
    rows = [found.mine, bounds, *sorted(found.others.values(), key=_hours)]
    return "\n".join([title, "", *_HEAD, *(_row(row, bound, mine) for row in rows if row)])


def _row(kept: Sequence[Kept], bound: float | None, mine: float) -> str:
    hours = _hours(kept)
    cells = (
        " ".join(dict.fromkeys(f"`{one.law}`" for one in kept)),
        f"{sum(one.attained for one in kept) / len(kept):.2%}",
        f"{hours:.2f}",
        "-" if bound is None else f"{hours / bound:.2f}",
        f"{hours / mine:.2f}",
        f"{sum(one.actions for one in kept) / len(kept):.0f}",
        f"{max(one.peak for one in kept)}",
    )
    return f"| {' | '.join(cells)} |"


def _hours(kept: Sequence[Kept]) -> float:
    return sum(one.engine_hours for one in kept) / len(kept)
