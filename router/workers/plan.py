"""What a worker and its parent agree on. PURE."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

BAD_INPUT = 2
"""Exit code of a worker that finds its configuration wrong."""

PARENT = "parent.sock"


def socket_of(folder: Path, number: int) -> Path:
    """Where a worker answers."""
    return folder / f"worker{number}.sock"


class Plan(msgspec.Struct, frozen=True):
    """What a worker is told."""

    number: int
    folder: str
    """Of the sockets."""
    listener: int
    """File descriptor."""
    admin_listener: int | None
    """The same of administration's own, if it has one."""
    config: str | None
    flags: dict[str, Any]


class Workers(NamedTuple):
    """The parent's answer about readiness."""

    running: int
    wanted: int
    draining: bool
