"""Who owns an endpoint: leases in Redis, claimed and renewed from a thread of its own.

A thread with its own event loop and connection: a router whose loop is busy for seconds keeps what it owns, and one
that is frozen or dead loses it, since neither lives without the process. What the thread knows is read by the loop
from plain attributes, replaced whole.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping

from kvindex.redis_store import RedisStore
from kvindex.redis_trouble import Complaint, StoreUnavailable

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Owns what it is asked to own, as far as others do not.

    `store` makes the thread's own store. `routers` says how many share the endpoints: a free one is left to others for
    one round where this router has its part already. A lease ends `lease_s` after its last renewal.
    """

    def __init__(
        self,
        store: Callable[[], RedisStore],
        router: str,
        *,
        routers: Callable[[], int] = lambda: 1,
        lease_s: float = 2.0,
        renew_s: float = 0.5,
    ) -> None:
        self._make_store = store
        self._router = router
        self._routers = routers
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._wanted: frozenset[str] = frozenset()
        self._tokens: Mapping[str, str] = {}
        self._until = 0.0
        self._free: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._complaint = Complaint(log, "leases are not renewed")
        self.failing = False
        """Leases could not be renewed the last time."""

    def start(self) -> None:
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._main, name="redis leases", daemon=True)
            self._thread.start()

    async def aclose(self) -> None:
        """Gives back what it owns if the server answers, and waits for the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._poke()
            await asyncio.to_thread(thread.join)
        self._tokens = {}

    def want(self, endpoints: frozenset[str]) -> None:
        """Owns these from now on, and no others. Returns at once."""
        if endpoints != self._wanted:
            self._wanted = endpoints
            self._poke()

    def token(self, endpoint: str) -> str | None:
        """What to write under; None: another owns it, or nobody. The server has the last word."""
        return self._tokens.get(endpoint) if time.monotonic() < self._until else None

    def is_others(self, endpoint: str) -> bool:
        """Another router owned it when last asked."""
        return endpoint in self._others

    def owned(self) -> int:
        return len(self._tokens) if time.monotonic() < self._until else 0

    def _poke(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None:
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:
                # The thread's loop has just ended.
                return

    def _main(self) -> None:
        try:
            asyncio.run(self._keep())
        except RuntimeError:
            log.exception("Redis: the leases' thread ended")
        finally:
            self._loop, self._tokens = None, {}

    async def _keep(self) -> None:
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        store = self._make_store()
        try:
            while not self._stopping:
                self._wake.clear()
                try:
                    await self._round(store)
                    self.failing = False
                    self._complaint.over()
                except StoreUnavailable:
                    # What is held is held until its time is over. The index says that there is no server.
                    self.failing = True
                except Exception as error:  # noqa: BLE001 (said with where it came from; the next round tries again)
                    self.failing = True
                    self._complaint.about(error)
                try:
                    async with asyncio.timeout(self._renew_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
            await store.release(list(self._tokens), self._router)
        except StoreUnavailable:
            log.debug("Redis: leases end with their time")
        finally:
            await store.aclose()

    async def _round(self, store: RedisStore) -> None:
        wanted = self._wanted
        given_up = [endpoint for endpoint in self._tokens if endpoint not in wanted]
        if given_up:
            self._tokens = {endpoint: token for endpoint, token in self._tokens.items() if endpoint in wanted}
            await store.release(given_up, self._router)
        part = -(-len(wanted) // max(self._routers(), 1))
        room = part - len(self._tokens)
        asked: dict[str, bool] = {}
        for endpoint in sorted(wanted, key=lambda name: hash((name, self._router))):
            take = endpoint in self._tokens or endpoint in self._free or room > 0
            if take and endpoint not in self._tokens:
                room -= 1
            asked[endpoint] = take
        asked_at = time.monotonic()
        owners = await store.claim(asked, self._router, self._lease_s)
        mine = f"{self._router}:"
        self._tokens = {endpoint: owner for endpoint, owner in owners.items() if owner.startswith(mine)}
        self._until = asked_at + self._lease_s
        self._free = frozenset(endpoint for endpoint, owner in owners.items() if not owner)
        self._others = frozenset(owners) - self._free - self._tokens.keys()
