"""Loopback ports for processes that are about to be started."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from typing import Final

_LOWEST: Final = 12_000
_HIGHEST: Final = 32_000
"""Below what systems give to outgoing connections (from 32,768 on Linux, 49,152 elsewhere): a port from there may be
taken between the look and the start."""


def free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on now. Raises OSError when there are none."""
    for _ in range(200):
        first = random.randrange(_LOWEST, _HIGHEST - count)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first
    raise OSError(f"no {count} free ports in a row")
