"""The board: what routers know and engines do not say, pinned up in Redis for each other, with expiry.

Three things. *Load*: what each router has in flight on each endpoint, a few numbers; it goes when its router has not
renewed it for `load_ttl_s`. *Dispatches*: the block hashes a router has just sent to an endpoint; from them come the
others' speculative entries and, for endpoints without KV events, their history, which a router that joins reads too.
*Notes*: a few bytes of each router that the board does not look into, with the expiry of its load.

One script call pins up what is new here and takes down what is new from others, so that a round costs one round trip.
Time is the server's. The board lies in one slot of a cluster::

    <ns>:{board}:load         hash: router -> milliseconds, then its load as msgpack
    <ns>:{board}:notes        hash: router -> milliseconds, then its note
    <ns>:{board}:dispatched   stream, bounded by length and age: router, endpoint, hashes
"""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kvindex.keybytes import from_bytes, to_bytes, to_keys
from kvindex.redis_link import RedisLink, end_task
from kvindex.redis_trouble import Complaint, StoreUnavailable

log = logging.getLogger(__name__)

Load = Mapping[str, tuple[int, int, int]]
"""Endpoint id -> requests, prefill tokens, tokens."""

_NO_LOAD: Load = {}
_NO_NOTES: Mapping[str, bytes] = {}
_READ_COUNT = 500
_QUEUE_KEYS = 200_000
_QUEUE_PER_CALL = 50_000
_HELLO_S = 0.1

_SCRIPT = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ttl, position, length, keep = tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local function pin(key, what)
  if what == '' then
    redis.call('HDEL', key, ARGV[1])
  else
    redis.call('HSET', key, ARGV[1], string.format('%d ', now) .. what)
    redis.call('PEXPIRE', key, ttl)
  end
end
local function of_others(key)
  local found = {}
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if all[i] ~= ARGV[1] then
      local space = string.find(all[i + 1], ' ', 1, true)
      if now - tonumber(string.sub(all[i + 1], 1, space - 1)) > ttl then
        redis.call('HDEL', key, all[i])
      else
        found[#found + 1] = all[i]
        found[#found + 1] = string.sub(all[i + 1], space + 1)
      end
    end
  end
  return found
end
pin(KEYS[1], ARGV[2])
pin(KEYS[3], ARGV[8])
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local last = newest[1] and newest[1][1] or '0-0'
local found = {}
if last ~= position then
  found = redis.call('XRANGE', KEYS[2], position == '' and '-' or '(' .. position, '+', 'COUNT', ARGV[7])
end
for i = 9, #ARGV, 2 do
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', length, '*', 'r', ARGV[1], 'e', ARGV[i], 'k', ARGV[i + 1])
end
if #ARGV > 8 then
  redis.call('XTRIM', KEYS[2], 'MINID', '~', string.format('%d', now - keep))
  redis.call('PEXPIRE', KEYS[2], keep)
end
return {now, last, of_others(KEYS[1]), found, of_others(KEYS[3])}
"""


class RedisBoard:
    """Exchanges with the board until `aclose`; without a server it goes on alone.

    `load` gives this router's own load, `on_dispatched` is told of others' dispatches: endpoint, hashes, and their age
    in seconds. `router` must be unique. A round is made at most every `interval_s` while there is something to tell or
    others have load, and every `_HELLO_S` otherwise.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        router: str,
        namespace: str = "kvrouter",
        load: Callable[[], Load] = lambda: _NO_LOAD,
        note: Callable[[], bytes] = lambda: b"",
        on_dispatched: Callable[[str, Sequence[int], float], None] = lambda endpoint, keys, age_s: None,
        interval_s: float = 0.02,
        load_ttl_s: float = 3.0,
        history_s: float = 600.0,
        history_length: int = 5_000,
    ) -> None:
        self._link = link
        self._router = router
        self._keys = [f"{namespace}:{{board}}:{name}" for name in ("load", "dispatched", "notes")]
        self._load = load
        self._note = note
        self._on_dispatched = on_dispatched
        self._interval_s = interval_s
        self._load_ttl_s = load_ttl_s
        self._history_s = history_s
        self._history_length = history_length
        self._queue: list[tuple[str, array[int]]] = []
        self._queued_keys = 0
        self._others: Load = _NO_LOAD
        self._others_at = 0.0
        self._position = b""
        self._something = asyncio.Event()
        self._told: tuple[Load, bytes] = (_NO_LOAD, b"")
        self._notes: Mapping[str, bytes] = _NO_NOTES
        self._task: asyncio.Task[None] | None = None
        self._complaint = Complaint(log, "others' load is not known")
        self.routers = 1
        """Routers on the board, this one included."""

    def others(self) -> Load:
        """What all other routers have in flight, summed; empty when nothing newer than `load_ttl_s` is known."""
        return self._others

    def notes(self) -> Mapping[str, bytes]:
        """Every other router's note by router, those that have one; the same mapping until one changes."""
        return self._notes

    def dispatched(self, endpoint: str, keys: Sequence[int]) -> None:
        """To be told to the others; the oldest is left out when the server takes none."""
        self._queue.append((endpoint, to_keys(keys)))
        self._queued_keys += len(keys)
        while self._queued_keys > _QUEUE_KEYS:
            self._queued_keys -= len(self._queue.pop(0)[1])
        self._something.set()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="redis board")

    async def aclose(self) -> None:
        """Takes this router's load down if the server answers, and closes the connection."""
        if self._task is not None:
            await end_task(self._task)
            self._task = None
            try:
                await self._link.call(lambda client: client.hdel(self._keys[0], self._router))
                await self._link.call(lambda client: client.hdel(self._keys[2], self._router))
            except StoreUnavailable:
                log.debug("Redis: the load of this router ends with its time")
        self._others, self._notes = _NO_LOAD, _NO_NOTES
        await self._link.aclose()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._exchange()
                failures = 0
                if self._complaint.over():
                    log.info("Redis: others' load is known again")
            except Exception as error:  # noqa: BLE001 (said with where it came from; the next round tries again)
                failures += 1
                self._complaint.about(error)
                if time.monotonic() - self._others_at > self._load_ttl_s:
                    self._others, self._notes, self.routers = _NO_LOAD, _NO_NOTES, 1
            pause_s = self._interval_s if not failures else min(1.0, 0.05 * 2.0**failures)
            await asyncio.sleep(pause_s)
            if not failures and not self._queue and not self._others and (self._load(), self._note()) == self._told:
                await self._wait(_HELLO_S)

    async def _wait(self, at_most_s: float) -> None:
        """Until there is something to tell; a change of load without a dispatch waits that long."""
        self._something.clear()
        try:
            async with asyncio.timeout(at_most_s):
                await self._something.wait()
        except TimeoutError:
            return

    async def _exchange(self) -> None:
        own, note = dict(self._load()), self._note()
        batch, size = 0, 0
        while batch < len(self._queue) and size < _QUEUE_PER_CALL:
            size += len(self._queue[batch][1])
            batch += 1
        taken, self._queue = self._queue[:batch], self._queue[batch:]
        self._queued_keys -= size
        arguments: list[Any] = [
            self._router,
            msgspec.msgpack.encode(own),
            round(self._load_ttl_s * 1000),
            self._position,
            self._history_length,
            round(self._history_s * 1000),
            _READ_COUNT,
            note,
        ]
        for endpoint, keys in taken:
            arguments += [endpoint, to_bytes(keys)]
        try:
            now_ms, last, others, found, notes = await self._link.eval(_SCRIPT, self._keys, arguments)
        except BaseException:
            # They may have been told: twice is no harm.
            self._queue[:0] = taken
            self._queued_keys += size
            raise
        self._told = (own, note)
        self._take_load(others[1::2])
        self._take_notes(notes)
        self._take_dispatches(int(now_ms), last, found)

    def _take_load(self, others: Sequence[bytes]) -> None:
        total: dict[str, tuple[int, int, int]] = {}
        for packed in others:
            try:
                load = _LOAD.decode(packed)
            except msgspec.DecodeError:
                continue
            for endpoint, (requests, prefill_tokens, tokens) in load.items():
                known = total.get(endpoint, (0, 0, 0))
                total[endpoint] = (known[0] + requests, known[1] + prefill_tokens, known[2] + tokens)
        self._others = total
        self._others_at = time.monotonic()
        self.routers = 1 + len(others)

    def _take_notes(self, flat: Sequence[bytes]) -> None:
        notes = {name.decode("utf-8", "replace"): note for name, note in zip(flat[::2], flat[1::2], strict=True)}
        if notes != self._notes:
            self._notes = notes

    def _take_dispatches(self, now_ms: int, last: bytes, found: Sequence[Any]) -> None:
        if self._position and _id(last) < _id(self._position):
            # Another server, or an emptied one: its ids begin anew.
            self._position = b""
            return
        for id_, fields in found:
            self._position = id_
            named = dict(zip(fields[::2], fields[1::2], strict=True))
            if named.get(b"r") == self._router.encode():
                continue
            endpoint, keys = named.get(b"e", b"").decode("utf-8", "replace"), from_bytes(named.get(b"k", b""))
            if endpoint and keys:
                self._on_dispatched(endpoint, keys, max(now_ms - _id(id_)[0], 0) / 1000)


_LOAD = msgspec.msgpack.Decoder(dict[str, tuple[int, int, int]])


def _id(stream_id: bytes) -> tuple[int, int]:
    milliseconds, _, number = stream_id.partition(b"-")
    return int(milliseconds), int(number or 0)
