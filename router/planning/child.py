"""``python -m router.planning.child``: plans in a process of its own, question by question, until its input ends.

The solver neither takes the router's loop nor survives a time-out: the parent ends this process and starts another.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from router.planning.messages import HEAD_BYTES, Asked, Said, framed

if TYPE_CHECKING:
    from router.capacity.planner import Planner

LACKS = 3
"""Exit code: what the solver needs cannot be imported."""


def serve(planner: Planner, given: BinaryIO, out: BinaryIO) -> None:
    decode = msgspec.msgpack.Decoder(Asked).decode
    while head := given.read(HEAD_BYTES):
        asked = decode(given.read(int.from_bytes(head, "big")))
        began = time.perf_counter()
        plans = planner.plan(asked.now, asked.views, asked.quotas)
        out.write(framed(Said(asked.number, plans, time.perf_counter() - began)))
        out.flush()


def main() -> None:
    try:
        from router.capacity.planner import Planner
    except ImportError as error:
        if (error.name or "").startswith("router"):
            raise
        sys.exit(LACKS)
    serve(Planner(), sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    main()
