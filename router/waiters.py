"""Who waits at the gate, and what each of them is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from router.core import EndpointState
from router.errors import RouterError
from router.flowcontrol.entries import Entry, Lane
from router.flowcontrol.objectives import Standing
from router.flowcontrol.passage import Admitted, Waiting


class Waiter:
    """One request that waits. It is answered once; what comes when its client has left is dropped."""

    __slots__ = ("_future", "standing", "waiting")

    def __init__(self, waiting: Waiting, standing: Standing) -> None:
        self.waiting = waiting
        self.standing = standing
        self._future: asyncio.Future[Admitted | RouterError] = asyncio.get_running_loop().create_future()

    async def answer(self) -> Admitted:
        """Raises what it was refused with."""
        answered = await self._future
        if isinstance(answered, RouterError):
            raise answered
        return answered

    @property
    def gone(self) -> bool:
        """Its client has left, or it was answered."""
        return self._future.done()

    def admit(self, admitted: Admitted) -> None:
        """It must not be `gone`."""
        self._future.set_result(admitted)

    def refuse(self, error: RouterError) -> None:
        if not self._future.done():
            self._future.set_result(error)

    def fail(self, error: BaseException) -> None:
        """A fault of the router's own. It must not be `gone`."""
        self._future.set_exception(error)

    def admitted_in_vain(self) -> Admitted | None:
        """What it was let in with in the very turn of the loop in which its client left."""
        future = self._future
        if not future.done() or future.cancelled() or future.exception() is not None:
            return None
        answered = future.result()
        return answered if isinstance(answered, Admitted) else None


class Waiters:
    def __init__(self) -> None:
        self._by_entry: dict[Entry, Waiter] = {}

    def add(self, entry: Entry, waiter: Waiter) -> None:
        self._by_entry[entry] = waiter

    def take(self, entry: Entry) -> Waiter:
        """It waits no more."""
        return self._by_entry.pop(entry)

    def forget(self, entry: Entry) -> None:
        self._by_entry.pop(entry, None)

    def take_all(self) -> Iterator[tuple[Entry, Waiter]]:
        everybody, self._by_entry = self._by_entry, {}
        return iter(everybody.items())

    def states(self, lanes: int) -> dict[Lane, Sequence[EndpointState]]:
        """Lane -> the endpoints that could take what waits in it; `lanes`: how many there are."""
        states: dict[Lane, Sequence[EndpointState]] = {}
        for entry, waiter in self._by_entry.items():
            if entry.lane not in states:
                try:
                    states[entry.lane] = waiter.waiting.states()
                except RouterError:
                    # Nobody is up for it now: it waits for its deadline or for an endpoint to return.
                    states[entry.lane] = ()
                if len(states) == lanes:
                    break
        return states
