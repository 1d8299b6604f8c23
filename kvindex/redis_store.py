"""The shared truth in Redis or Valkey: which engine holds which block, written by one owner at a time.

Layout, with ``{endpoint}`` as the cluster hash tag so that one endpoint's keys share a slot::

    <ns>:{<endpoint>}:owner           the lease: "<router>:<epoch>", gone when not renewed; time is the server's
    <ns>:{<endpoint>}:state           hash: at (last message applied), facts, router
    <ns>:{<endpoint>}:device|host|storage   hash: engine hash -> block hashes it stands for, 8 bytes each
    <ns>:{<endpoint>}:counts0|1|2     hash: engine hash -> how often it is stored, above 1
    <ns>:{<endpoint>}:changes         stream: what was written, for those that cannot hear the engine; bounded
    <ns>:endpoints                    set of endpoint ids

A batch is one script call: all of it or nothing. It names the lease it writes under and the place it starts from; if
either is not what the server has (another owner, a lease run out, a server emptied, replaced or rolled back), nothing
is written. A batch whose answer was lost may be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, NamedTuple

from kvindex.events import Tier
from kvindex.journal import At, Change, Saved, decode_at, read_table
from kvindex.keybytes import from_bytes
from kvindex.redis_link import RedisLink

_OLDEST = 7
"""Major version, of Valkey as of Redis: the first Valkey was 7."""
_SCAN_COUNT = 2500
_READ_COUNT = 100
_STREAM_LENGTH = 2_000
_SNAPSHOT_TRIES = 3
_TORN_WAITS = 20
_TORN_S = 0.05

_CLAIM = """
local owner = redis.call('GET', KEYS[1])
if not owner then
  if ARGV[3] == '0' then return '' end
  local clock = redis.call('TIME')
  owner = ARGV[1] .. ':' .. string.format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000))
  redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
elseif string.sub(owner, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return owner
"""

_RELEASE = """
local owner = redis.call('GET', KEYS[1])
if owner and string.sub(owner, 1, #ARGV[1] + 1) == ARGV[1] .. ':' then redis.call('DEL', KEYS[1]) end
"""

_WRITE = """
local none = string.rep(string.char(0), 8)
local one = string.char(1) .. string.rep(string.char(0), 7)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'fenced' end
local at = redis.call('HGET', KEYS[2], 'at') or ''
if at == ARGV[3] then return 'ok' end
if at ~= ARGV[2] then return 'moved' end
for i = 7, #ARGV, 2 do
  local op, payload = ARGV[i], ARGV[i + 1]
  local kind, tier = string.sub(op, 1, 1), tonumber(string.sub(op, 2, 2))
  if kind == 'c' then
    if tier then redis.call('DEL', KEYS[4 + tier], KEYS[7 + tier])
    else redis.call('DEL', KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]) end
  else
    local width = 8 * string.byte(payload, 1)
    local key = kind == 'n' and KEYS[7 + tier] or KEYS[4 + tier]
    local set, del = {}, {}
    for from = 2, #payload, width + 8 do
      local hash, value = string.sub(payload, from, from + 7), string.sub(payload, from + 8, from + 7 + width)
      if kind == 'r' or (kind == 'n' and (value == one or value == none)) then
        if #set > 0 then redis.call('HSET', key, unpack(set)) set = {} end
        del[#del + 1] = hash
        if #del >= 4000 then redis.call('HDEL', key, unpack(del)) del = {} end
      else
        if #del > 0 then redis.call('HDEL', key, unpack(del)) del = {} end
        set[#set + 1] = hash
        set[#set + 1] = value
        if #set >= 4000 then redis.call('HSET', key, unpack(set)) set = {} end
      end
    end
    if #set > 0 then redis.call('HSET', key, unpack(set)) end
    if #del > 0 then redis.call('HDEL', key, unpack(del)) end
  end
end
redis.call('HSET', KEYS[2], 'at', ARGV[3], 'facts', ARGV[4], 'router', ARGV[1])
local entry = {'f', ARGV[2], 't', ARGV[3]}
for i = 7, #ARGV, 2 do
  entry[#entry + 1] = i .. ':' .. ARGV[i]
  entry[#entry + 1] = ARGV[i + 1]
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', unpack(entry))
for i = 2, 9 do redis.call('EXPIRE', KEYS[i], ARGV[6]) end
return 'ok'
"""

_STATE = """
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local state = redis.call('HMGET', KEYS[2], 'at', 'facts')
return {state[1], state[2], newest[1] and newest[1][1] or '0-0', redis.call('GET', KEYS[1])}
"""


class Server(NamedTuple):
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def too_old(self) -> bool:
        major = self.version.partition(".")[0]
        return major.isdecimal() and int(major) < _OLDEST


class Written(Enum):
    OK = "ok"
    FENCED = "fenced"
    """The lease is another's, or has run out."""
    MOVED = "moved"
    """The state is not where the batch starts from."""


class State(NamedTuple):
    at: At | None
    """None: nothing is known there."""
    raw_at: bytes
    """As stored: what a batch must start from."""
    facts: bytes
    position: bytes
    """Newest id of the changes."""
    owner: bytes | None


class Entry(NamedTuple):
    """One batch as read from an endpoint's changes."""

    endpoint: str
    id: bytes
    start: bytes
    end: bytes
    changes: list[Change]


class Snapshot(NamedTuple):
    saved: Saved
    position: bytes
    raw_at: bytes


class RedisStore:
    """The shared truth through one link, so for one task at a time. Methods raise StoreUnavailable."""

    def __init__(self, link: RedisLink, *, namespace: str = "kvrouter", retention_s: int = 3600) -> None:
        self._link = link
        self._namespace = namespace
        self._retention_s = retention_s

    async def aclose(self) -> None:
        await self._link.aclose()

    async def ping(self) -> Server:
        """What the server is, once it took a write and gave it back."""
        key = f"{self._namespace}:ping"

        async def ask(client: Any) -> Server:
            await client.set(key, b"1", px=1000)
            await client.get(key)
            info = await client.info("server")
            if all(isinstance(value, dict) for value in info.values()):
                # A cluster answers by node.
                info = next(iter(info.values()))
            if "valkey_version" in info:
                return Server("Valkey", str(info["valkey_version"]))
            return Server("Redis", str(info.get("redis_version", "")))

        return await self._link.call(ask)

    # Leases

    async def claim(self, endpoints: Mapping[str, bool], router: str, lease_s: float) -> dict[str, str]:
        """Renews and, where True, takes free leases. Endpoint -> its owner ("": nobody)."""
        names = list(endpoints)
        calls = [
            (_CLAIM, [self._keys(name)[0]], [router, round(lease_s * 1000), int(take)])
            for name, take in endpoints.items()
        ]
        answers = await self._eval_many(calls)
        return {name: answer.decode() for name, answer in zip(names, answers, strict=True)}

    async def release(self, endpoints: Sequence[str], router: str) -> None:
        await self._eval_many([(_RELEASE, [self._keys(name)[0]], [router]) for name in endpoints])

    # The owner writes

    async def write(
        self, endpoint: str, token: str, start: bytes, end: At, facts: bytes, changes: Sequence[Change]
    ) -> Written:
        """One batch of one endpoint, from one place in its engine's stream to another."""
        arguments: list[Any] = [token, start, end.encode(), facts, _STREAM_LENGTH, self._retention_s]
        for change in changes:
            arguments += [change.op, change.payload]
        answer = await self._link.eval(_WRITE, self._keys(endpoint), arguments)
        return Written(answer.decode())

    async def announce(self, endpoint: str) -> None:
        """So that others find it."""
        await self._link.call(lambda client: client.sadd(f"{self._namespace}:endpoints", endpoint))

    # Everybody reads

    async def endpoints(self) -> set[str]:
        members: set[bytes] = await self._link.call(lambda client: client.smembers(f"{self._namespace}:endpoints"))
        return {member.decode() for member in members}

    async def state(self, endpoint: str) -> State:
        at, facts, position, owner = await self._link.eval(_STATE, self._keys(endpoint), [])
        return State(decode_at(at or b""), at or b"", facts or b"", position, owner)

    async def tables(self, endpoint: str, tier: Tier) -> tuple[dict[bytes, bytes], dict[bytes, bytes]]:
        """A tier's engine hashes, and its counts, as they are found while they may change."""
        keys = self._keys(endpoint)
        return await self._scan(keys[3 + tier]), await self._scan(keys[6 + tier])

    async def snapshot(self, endpoint: str) -> Snapshot | None:
        """All that is known of an endpoint, as it was at one moment. None: nothing, or not to be had now.

        What changes while it is read is taken from the changes afterwards: they are absolute, so that doing again what
        the tables already show does no harm.
        """
        for _ in range(_SNAPSHOT_TRIES):
            before = await self.state(endpoint)
            if before.at is None:
                return None
            found = [await self.tables(endpoint, tier) for tier in Tier]
            raw_at, position = before.raw_at, before.position
            at: At | None = before.at
            whole, waits = True, 0
            while whole:
                entries = await self.changes({endpoint: position})
                for entry in entries:
                    whole = whole and entry.start == raw_at
                    raw_at, position = entry.end, entry.id
                    for change in entry.changes:
                        _apply(change, found)
                at = decode_at(raw_at)
                if entries:
                    continue
                if at is None or not at.part or waits == _TORN_WAITS:
                    break
                # The owner is in the middle of a message or of a difference: the rest follows.
                waits += 1
                await asyncio.sleep(_TORN_S)
            if whole and at is not None and not at.part:
                held = [read_table(table) for table, _ in found]
                counts = [_counts(counted) for _, counted in found]
                return Snapshot(Saved(at, held, counts, before.facts), position, raw_at)
        return None

    async def changes(self, positions: Mapping[str, bytes]) -> list[Entry]:
        """What was written after the given ids."""
        if not positions:
            return []

        async def ask(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for endpoint, position in positions.items():
                # One stream a command: those of a cluster lie in several slots.
                pipe.xrange(self._keys(endpoint)[2], b"(" + position, b"+", count=_READ_COUNT)
            return list(await pipe.execute())

        answers = await self._link.call(ask)
        return [
            _entry(endpoint, id_, fields)
            for endpoint, found in zip(positions, answers, strict=True)
            for id_, fields in found
        ]

    def _keys(self, endpoint: str) -> list[str]:
        prefix = f"{self._namespace}:{{{endpoint}}}"
        names = ("owner", "state", "changes", "device", "host", "storage", "counts0", "counts1", "counts2")
        return [f"{prefix}:{name}" for name in names]

    async def _eval_many(self, calls: Sequence[tuple[str, list[str], list[Any]]]) -> list[Any]:
        if self._link.kind == "cluster":
            return [await self._link.eval(*call) for call in calls]

        async def ask(client: Any) -> list[Any]:
            pipe = client.pipeline(transaction=False)
            for script, keys, arguments in calls:
                pipe.eval(script, len(keys), *keys, *arguments)
            return list(await pipe.execute())

        return await self._link.call(ask) if calls else []

    async def _scan(self, key: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        cursor = 0
        while True:
            cursor, page = await self._page(key, cursor)
            found.update(page)
            if not cursor:
                return found

    async def _page(self, key: str, cursor: int) -> tuple[int, dict[bytes, bytes]]:
        answer: tuple[int, dict[bytes, bytes]] = await self._link.call(
            lambda client: client.hscan(key, cursor, count=_SCAN_COUNT)
        )
        return answer


def earlier(one: bytes, other: bytes) -> bool:
    """Whether one id of a stream comes before another."""
    return _number(one) < _number(other)


def _number(id_: bytes) -> tuple[int, int]:
    milliseconds, _, number = id_.partition(b"-")
    return int(milliseconds), int(number or 0)


@asynccontextmanager
async def closing(store: RedisStore) -> AsyncIterator[RedisStore]:
    try:
        yield store
    finally:
        await store.aclose()


def _apply(change: Change, found: list[tuple[dict[bytes, bytes], dict[bytes, bytes]]]) -> None:
    tier, payload = change.tier, change.payload
    if change.kind == "c":
        for each in Tier if tier is None else (tier,):
            found[each][0].clear()
            found[each][1].clear()
        return
    if tier is None or not payload:
        return
    table, counts = found[tier]
    width = 8 * payload[0]
    for at in range(1, len(payload) - width - 7, width + 8):
        hash_, value = payload[at : at + 8], payload[at + 8 : at + 8 + width]
        if change.kind == "s":
            table[hash_] = value
        elif change.kind == "r":
            table.pop(hash_, None)
        else:
            counts[hash_] = value


def _counts(counted: dict[bytes, bytes]) -> dict[int, int]:
    hashes, counts = from_bytes(b"".join(counted)), from_bytes(b"".join(counted.values()))
    return {hash_: count for hash_, count in zip(hashes, counts, strict=True) if count > 1}


def _entry(endpoint: str, id_: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    """Fields keep their order; steps that a later version may add are left out."""
    changes = []
    for name, value in fields.items():
        op = name.partition(b":")[2].decode("ascii", "replace")
        if op[:1] in ("s", "r", "c", "n") and op[1:] in ("", "0", "1", "2"):
            changes.append(Change(op, value))
    return Entry(endpoint, id_, fields.get(b"f", b""), fields.get(b"t", b""), changes)
