"""One worker: a whole router on the parent's listener. ``python -m router.workers.child``, its plan on standard input.

Standard input stays open as long as the parent lives: its end is the parent's, and then the worker ends in order.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from router.api.admin import Obedience, Order
from router.api.rest import Readiness
from router.errors import ConfigError, WorkersSilent
from router.orders import InForce, Orders
from router.reload import SettingsLoader
from router.serving import serve_on
from router.workers.plan import BAD_INPUT, PARENT, Plan, Workers, socket_of
from router.workers.talk import THROUGH_S, Answerer, ask

_ASKED_AT_MOST = 5


class Family:
    """Implements `router.api.rest.Siblings`: the parent knows all of them."""

    def __init__(self, folder: Path, number: int) -> None:
        self._number = number
        self._parent = folder / PARENT
        self._path = socket_of(folder, number)
        self._answerer: Answerer | None = None

    async def begin(self, page: Callable[[], bytes | None], orders: Orders) -> None:
        async def metrics(_: str) -> bytes:
            return page() or b""

        async def order(told: str) -> bytes:
            orders.obey(msgspec.json.decode(told, type=Order), known=True)
            return b"ok"

        async def ping(_: str) -> bytes:
            return b"pong"

        self._answerer = Answerer(self._path, {"metrics": metrics, "order": order, "ping": ping})
        # First to be told of what comes, then to ask what was told before.
        await self._answerer.start()
        for _ in range(_ASKED_AT_MOST):
            told = await ask(self._parent, "orders")
            in_force = msgspec.json.decode(told, type=InForce) if told else orders.in_force
            if in_force == orders.in_force:
                break
            # One that came meanwhile is older or newer than this answer: the next answer has it.
            orders.restore(in_force)
        await ask(self._parent, f"ready {self._number}")

    async def aclose(self) -> None:
        if self._answerer is not None:
            await self._answerer.aclose()

    async def metrics(self, own: bytes) -> bytes:
        page = await ask(self._parent, "metrics", THROUGH_S)
        if not page:
            # This worker's own page would look like counts that have fallen.
            raise WorkersSilent("The page of all workers cannot be made now: their parent does not answer.")
        return page

    async def order(self, order: Order) -> Obedience:
        answer = await ask(self._parent, f"order {msgspec.json.encode(order).decode()}", THROUGH_S)
        # Nobody answers: this worker alone is known to obey, of at least one other.
        return msgspec.json.decode(answer, type=Obedience) if answer else Obedience(1, 2)

    async def reload(self) -> None:
        await ask(self._parent, "reload")

    async def readiness(self) -> Readiness:
        answer = await ask(self._parent, "workers")
        try:
            workers = msgspec.json.decode(answer or b"", type=Workers)
        except msgspec.DecodeError:
            # The parent is busy or gone; this worker speaks for itself.
            return Readiness(draining=False, shown={})
        return Readiness(
            draining=workers.draining, shown={"workers": {"running": workers.running, "of": workers.wanted}}
        )


def _leash() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    # Until the router takes it over: a reload asked for meanwhile is a load that is still to come.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Whatever holds it up: where each thread stands, in names of functions and lines, without a value.
    faulthandler.register(signal.SIGUSR1)
    line = sys.stdin.buffer.readline()
    plan = msgspec.json.decode(line, type=Plan)
    threading.Thread(target=_leash, name="leash", daemon=True).start()
    config = None if plan.config is None else Path(plan.config)
    loader = SettingsLoader(config, plan.flags)
    try:
        settings = loader()
        with contextlib.ExitStack() as opened:
            listener = opened.enter_context(socket.socket(fileno=plan.listener))
            admin = None
            if plan.admin_listener is not None:
                admin = opened.enter_context(socket.socket(fileno=plan.admin_listener))
            family = Family(Path(plan.folder), plan.number)
            return serve_on(listener, settings, loader, family, admin, who=f"worker {plan.number}")
    except ConfigError as error:
        print(f"kvrouter: {' '.join(str(error).split())}", file=sys.stderr)  # noqa: T201
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
