"""``python -m loadtest.chaos``: engines, Redis and routers are hurt under load, and no promise may break.

Six simulated engines (three decode, two prefill, one both), two routers on one Redis, one of which lets other engines
go on with broken streams, and 300 clients. Engines are killed, terminated, frozen, paused, put to sleep, slowed, made
to hang, to cut streams, to fail and to be busy; Redis is killed, frozen and emptied; routers are restarted by SIGTERM
while refused clients try the other one.

Kept must be: no request without an answer that somebody could have given, every cut stream visibly cut, all counts back
to zero, flat memory. Exit code 1 when one of them was not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import msgspec
from rich.console import Console

from loadtest.arguments import Parser, complain, positive, whole
from loadtest.chaos.cast import Cast
from loadtest.chaos.clients import Clients
from loadtest.chaos.faults import Chaos
from loadtest.chaos.report import Report, table
from loadtest.chaos.watch import Memory, continued, grown, unsettled
from loadtest.demo.children import ChildFailed
from loadtest.ports import free_ports

_SHOW_S = 5.0
_SETTLE_S = 30.0


async def run(options: argparse.Namespace, folder: Path, console: Console) -> Report:
    """Raises `ChildFailed`, OSError."""
    rng = random.Random(options.seed)
    cast = Cast(free_ports(8), folder, speed=options.speed)
    async with httpx.AsyncClient(timeout=10.0, trust_env=False, verify=False) as http:
        try:
            console.print("starting 6 engines, 2 routers and a Redis ...")
            await cast.start()
            chaos = Chaos(cast, http, rng)
            clients = Clients(cast, chaos.hurt, rng, think_s=(options.think / 2, options.think * 1.5))
            memory = Memory(cast.routers)
            began = time.monotonic()
            watching = [asyncio.create_task(memory.watch()), asyncio.create_task(_show(console, began, clients, chaos))]
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(clients.run(options.clients))
                    await chaos.run(options.minutes * 60)
                    clients.stop()
            finally:
                for task in watching:
                    task.cancel()
            left = await unsettled(cast, http, _SETTLE_S)
            gone_on = await continued(cast, http)
        finally:
            await cast.stop()
    by_fault: dict[str, dict[str, int]] = {}
    for (fault, outcome), count in clients.under_faults.items():
        by_fault.setdefault(fault, {})[outcome] = count
    growth = {name: change for name, life in memory.lives.items() if (change := grown(life)) is not None}
    return Report(
        seconds=options.minutes * 60,
        clients=options.clients,
        requests=clients.requests,
        turned_away=clients.turned_away,
        outcomes=dict(clients.outcomes),
        faults=dict(chaos.done),
        by_fault=by_fault,
        longest_s=clients.longest_s,
        continued=gone_on,
        grown_bytes=growth,
        unsettled=left,
        not_back=chaos.broken,
        wrong=clients.wrong,
    )


async def _show(console: Console, began: float, clients: Clients, chaos: Chaos) -> None:
    while True:
        await asyncio.sleep(_SHOW_S)
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(clients.outcomes.items()))
        hurt = ", ".join(f"{name} {what}" for name, what in sorted(chaos.hurt.items())) or "all is well"
        console.print(f"{time.monotonic() - began:5.0f} s  {outcomes or 'no answer yet'} | {hurt}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.chaos", description="Hurts engines, Redis and routers under load.")
    parser.add_argument("--minutes", type=positive, default=10.0, help="how long faults go on")
    parser.add_argument("--clients", type=whole(1, 10_000), default=300)
    parser.add_argument("--think", type=positive, default=8.0, help="mean pause of a client between requests, seconds")
    parser.add_argument("--speed", type=positive, default=0.5, help="of the engines, against the profile 'demo'")
    parser.add_argument("--seed", type=whole(0), default=1)
    parser.add_argument("--json", type=Path, help="write the report there too")
    parser.add_argument("--keep", type=Path, help="folder for the processes' logs; default: a temporary one")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="kvrouter-") as made:
            folder = options.keep or Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            report = asyncio.run(run(options, folder, console))
        if options.json is not None:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    except (ChildFailed, OSError) as error:
        return complain(error)
    console.print(table(report))
    console.print(
        f"{report.turned_away} turned away by a router that ended, {report.continued} broken streams gone on with, "
        f"longest request {report.longest_s:.1f} s, memory "
        + (", ".join(f"{n} {g / 1e6:+.1f} MB/{s:.0f} s" for n, (s, g) in report.grown_bytes.items()) or "not measured"),
        highlight=False,
    )
    for sentence in report.wrong:
        console.print(sentence, markup=False, highlight=False)
    broken = report.broken()
    for sentence in broken:
        console.print(f"BROKEN: {sentence}", markup=False, highlight=False)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
