"""Wake: requests held while their pool has no engine, until one serves or their time is over.

Held requests are counted, which is what wakes a pool at zero; they go in the order in which they came. Bounded: beyond
the most that may wait, a request is refused at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from router.errors import NoEndpoint


class Wake:
    def __init__(
        self,
        *,
        most: int,
        wait_s: float,
        pool_of: Callable[[str | None], str],
        knows: Callable[[str | None], bool],
        coming: str,
    ) -> None:
        """`coming`: what is done for an engine to come, as who waits in vain is told."""
        self._most = most
        self._wait_s = wait_s
        self._pool_of = pool_of
        self._knows = knows
        self._coming = coming
        self._event = asyncio.Event()
        self.held: Counter[str] = Counter()
        """Pool -> requests that wait."""
        self.asked = asyncio.Event()
        """Set when the first one of a pool begins to wait."""

    async def until(self, able: Callable[[], bool], model: str | None) -> None:
        """Returns when `able`, and at once for a model that no pool serves. Raises NoEndpoint, which names the setting
        that ended the waiting."""
        if able() or not self._knows(model):
            return
        if self.held.total() >= self._most:
            raise NoEndpoint(
                f"No engine serves this model yet; {self._coming}. {self._most} requests wait for engines already, "
                "which is the most that may (capacity.max_held): ask again later."
            )
        pool = self._pool_of(model)
        self.held[pool] += 1
        self.asked.set()
        try:
            async with asyncio.timeout(self._wait_s):
                while not able():
                    await self._event.wait()
        except TimeoutError:
            raise NoEndpoint(
                f"No engine serves this model yet; {self._coming}. None has come up in the {self._wait_s:g} s that a "
                "request waits (capacity.hold_s): ask again later."
            ) from None
        finally:
            self.held[pool] -= 1
            if not self.held[pool]:
                del self.held[pool]

    def look(self) -> None:
        """Something may have changed: everybody looks again."""
        if self.held:
            self._event.set()
            self._event = asyncio.Event()
