"""Which endpoints administrators have taken out of service, at all routers over one Redis.

An order holds at once where it is given, and is told to the others through Redis; each asks a few times a second what
is in force, and once before it serves. No request waits for it. While the server does not answer every router keeps to
the orders that it knows, and tells its own later: of two orders about one endpoint the one that arrives last counts.
Two keys, in one slot::

    <ns>:{orders}:drained    hash: endpoint -> when a router last had it in its pool, in milliseconds
    <ns>:{orders}:version    counts up with every change

Time is the server's. An order ends a day after no router has had its endpoint any more. A server that was emptied, or
that lost the last changes in a failover, shows an older version than routers have seen: the first that notices writes
back what is in force with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvindex.redis_link import RedisLink
from kvindex.redis_trouble import Complaint, StoreUnavailable
from router.api.admin import Order
from router.orders import InForce, Orders
from router.ports import Clock

logger = logging.getLogger(__name__)

_KEEP_MS = 86_400_000
_SEEN_S = 600.0
_SETTLED_S = 2.0
"""How long an order that a sibling told may be on its way to the server."""

_SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local keep, seen_before, first = tonumber(ARGV[1]), tonumber(ARGV[2]), 4
local version = tonumber(redis.call('GET', KEYS[2]) or '0')
local changed, touched = false, false
if ARGV[3] ~= 'restore' then
  if version < seen_before then
    return {version, {}}
  end
elseif version < seen_before then
  redis.call('DEL', KEYS[1])
  version, changed = seen_before, true
else
  first = #ARGV + 1
end
for i = first, #ARGV, 2 do
  local known = redis.call('HEXISTS', KEYS[1], ARGV[i + 1]) == 1
  if ARGV[i] == 'resume' then
    changed = redis.call('HDEL', KEYS[1], ARGV[i + 1]) == 1 or changed
  elseif ARGV[i] == 'drain' or known then
    redis.call('HSET', KEYS[1], ARGV[i + 1], string.format('%d', now))
    changed, touched = changed or not known, true
  end
end
local drained = redis.call('HGETALL', KEYS[1])
local names = {}
for i = 1, #drained, 2 do
  if now - tonumber(drained[i + 1]) > keep then
    redis.call('HDEL', KEYS[1], drained[i])
    changed = true
  else
    names[#names + 1] = drained[i]
  end
end
if changed then
  version = version + 1
  redis.call('SET', KEYS[2], string.format('%d', version))
end
if changed or touched then
  redis.call('PEXPIRE', KEYS[1], keep)
  redis.call('PEXPIRE', KEYS[2], keep)
end
return {version, names}
"""


class _Noted(NamedTuple):
    """An order that holds here and of which the server is not known to have heard."""

    order: Order
    own: bool
    """To be told by this router; a sibling tells its own."""
    until: float


class OrderSharing:
    """`link` is this part's own. `clock` in seconds."""

    def __init__(
        self, link: RedisLink, orders: Orders, *, namespace: str, clock: Clock, interval_s: float = 0.5
    ) -> None:
        self._link = link
        self._orders = orders
        self._keys = [f"{namespace}:{{orders}}:{name}" for name in ("drained", "version")]
        self._clock = clock
        self._interval_s = interval_s
        self._noted: dict[str, _Noted] = {}
        self._version = 0
        self._drained: frozenset[str] = frozenset()
        """What the server said last."""
        self._seen_at = clock()
        self._complaint = Complaint(logger, "orders are not shared, and those known here stay in force")
        self._one_at_a_time = asyncio.Lock()
        orders.tell(self._note)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.exchange()

    async def exchange(self) -> bool:
        """One round: tells the orders that were given here, and takes over what is in force. Whether the server
        answered."""
        async with self._one_at_a_time:
            telling = {name: noted for name, noted in self._noted.items() if noted.own}
            words = [word for name, noted in telling.items() for word in (noted.order.do, name)]
            seen = self._seen()
            try:
                version, drained = await self._ask("", [*words, *(word for name in seen for word in ("seen", name))])
                if version < self._version:
                    held = [word for name in self._orders.in_force.endpoints for word in ("drain", name)]
                    logger.warning("Redis has lost orders: what is in force here is written back")
                    version, drained = await self._ask("restore", held)
            except StoreUnavailable as unavailable:
                self._complaint.about(unavailable)
                return False
            if self._complaint.over():
                logger.info("orders are shared again")
            if seen:
                self._seen_at = self._clock()
            for name, noted in telling.items():
                # What was ordered anew meanwhile is still to be told.
                if self._noted.get(name) is noted:
                    del self._noted[name]
            self._version, self._drained = version, drained
            self._take_over()
            return True

    async def aclose(self) -> None:
        await self._link.aclose()

    async def _ask(self, how: str, words: Sequence[str]) -> tuple[int, frozenset[str]]:
        arguments: list[Any] = [_KEEP_MS, self._version, how, *words]
        # To an older version than was seen the script tells nothing and takes nothing, but for a restore.
        version, names = await self._link.eval(_SCRIPT, self._keys, arguments)
        return int(version), frozenset(name.decode("utf-8", "replace") for name in names)

    def _seen(self) -> list[str]:
        """Endpoints whose order stays in force because they are in this router's pool, once in a while."""
        if self._clock() - self._seen_at < _SEEN_S:
            return []
        return [name for name in self._orders.in_force.endpoints if self._orders.in_pool(name)]

    def _note(self, order: Order, *, own: bool) -> None:
        if order.endpoint is None:
            return
        noted = self._noted.get(order.endpoint)
        if not own and noted is not None and noted.own and noted.order == order:
            # What was given here comes back from the siblings.
            return
        self._noted[order.endpoint] = _Noted(order, own, self._clock() + _SETTLED_S)

    def _take_over(self) -> None:
        now = self._clock()
        self._noted = {name: noted for name, noted in self._noted.items() if noted.own or noted.until > now}
        wanted = set(self._drained)
        for name, noted in self._noted.items():
            (wanted.add if noted.order.do == "drain" else wanted.discard)(name)
        here = self._orders.in_force
        if wanted == set(here.endpoints):
            return
        for word, names in (("drained", wanted.difference(here.endpoints)), ("back", set(here.endpoints) - wanted)):
            if names:
                logger.info("by order from another router: %s %s", ", ".join(sorted(names)), word)
        kept = tuple(name for name in here.endpoints if name in wanted)
        self._orders.restore(InForce(kept + tuple(sorted(wanted.difference(kept))), here.router))
