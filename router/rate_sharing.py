"""What API keys have used at all routers together, told from router to router through Redis a few times a second.

No request waits for it: each router charges what it gives at once, and what the others gave as soon as it hears of
it, so that a key may get a little more than its rate for as long as an exchange takes. When the server does not answer,
each router gives its share of every rate, and what was used meanwhile is not told later. One hash, in one slot::

    <ns>:{rates}:used    hash: "r <key>" or "t <key>" -> requests or tokens used in all

It counts up and goes an hour after its last writer; a router that joins, or finds it gone, begins at what it says then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from kvindex.redis_link import RedisLink
from kvindex.redis_trouble import Complaint, StoreUnavailable
from router.flowcontrol.key_limits import KeyLimits, Used

logger = logging.getLogger(__name__)

_SCRIPT = """
for i = 2, #ARGV, 2 do
  redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
end
if #ARGV > 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return redis.call('HGETALL', KEYS[1])
"""
_KEEP_MS = 3_600_000


class RateSharing:
    def __init__(
        self,
        link: RedisLink,
        limits: KeyLimits,
        *,
        namespace: str,
        routers: Callable[[], int],
        interval_s: float = 0.1,
    ) -> None:
        """`link` is this part's own. `routers`: how many there are, as last known."""
        self._link = link
        self._limits = limits
        self._key = f"{namespace}:{{rates}}:used"
        self._routers = routers
        self._interval_s = interval_s
        self._seen: dict[bytes, int] | None = None
        self._complaint = Complaint(logger, "rates are not shared, and each router gives its part of them")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            if self._limits.limited:
                await self.exchange()

    async def exchange(self) -> None:
        """One round."""
        used = self._limits.take_used()
        arguments: list[bytes | int] = [_KEEP_MS]
        for field, count in _fields(used):
            arguments += (field, count)
        try:
            reply = await self._link.eval(_SCRIPT, [self._key], arguments)
        except StoreUnavailable as unavailable:
            self._complaint.about(unavailable)
            self._limits.share = 1 / max(self._routers(), 1)
            # What the others did meanwhile is not charged to anybody later.
            self._seen = None
            return
        if self._complaint.over():
            logger.info("rates are shared again")
        self._limits.share = 1.0
        self._hear(dict(zip(reply[::2], map(int, reply[1::2]), strict=True)), dict(_fields(used)))

    async def aclose(self) -> None:
        await self._link.aclose()

    def _hear(self, totals: Mapping[bytes, int], own: Mapping[bytes, int]) -> None:
        seen, self._seen = self._seen, dict(totals)
        if seen is None:
            return
        for field, total in totals.items():
            theirs = total - seen.get(field, 0) - own.get(field, 0)
            # Less than nothing: the server was emptied, and counts anew.
            if theirs > 0 and total >= seen.get(field, 0):
                kind, _, key = field.decode("utf-8", "replace").partition(" ")
                self._limits.used_elsewhere(key, *((theirs, 0) if kind == "r" else (0, theirs)))


def _fields(used: Mapping[str, Used]) -> list[tuple[bytes, int]]:
    fields = []
    for key, amount in used.items():
        for kind, count in (("r", amount.requests), ("t", amount.tokens)):
            if count:
                fields.append((f"{kind} {key}".encode(), count))
    return fields
