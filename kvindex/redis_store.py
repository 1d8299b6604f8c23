"""The shared truth in Redis or Valkey: keys, one script, and a time budget on every command.

Layout, with ``{endpoint}`` as the cluster hash tag so that one endpoint's keys share a slot::

    <ns>:{<endpoint>}:device|host|storage   set of 8-byte block hashes
    <ns>:{<endpoint>}:stream                what writers did, for those that follow; bounded
    <ns>:endpoints                          set of endpoint ids
    <ns>:epoch                              random; another value means another, flushed or replaced server

A batch of one endpoint is one script call: all of it or nothing, and in the stream in the same order. Writes are
idempotent, so a batch whose answer was lost is sent again. Fencing by an owner's token belongs at the head of the
script: one more key in the same slot to compare with, before anything is changed.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from kvindex.events import Tier

_T = TypeVar("_T")

_SCAN_COUNT = 2000
_READ_COUNT = 200

_SCRIPT = """
local function each(payload, command, key)
  for from = 1, #payload, 32000 do
    local members = {}
    for at = from, math.min(from + 31999, #payload), 8 do
      members[#members + 1] = string.sub(payload, at, at + 7)
    end
    redis.call(command, key, unpack(members))
  end
end
local entry = {'writer', ARGV[1]}
for i = 4, #ARGV, 2 do
  local op, payload = ARGV[i], ARGV[i + 1]
  local kind, tier = string.lower(string.sub(op, 1, 1)), tonumber(string.sub(op, 2, 2))
  if kind == 's' then each(payload, 'SADD', KEYS[tier + 1])
  elseif kind == 'r' then each(payload, 'SREM', KEYS[tier + 1])
  elseif kind == 'c' then
    if tier then redis.call('DEL', KEYS[tier + 1]) else redis.call('DEL', KEYS[1], KEYS[2], KEYS[3]) end
  end
  if string.lower(op) == op then
    entry[#entry + 1] = i .. ':' .. op
    entry[#entry + 1] = payload
  end
end
if #entry > 2 then redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[2], '*', unpack(entry)) end
for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
"""


class StoreUnavailable(Exception):
    """The server cannot be reached, is too slow, or refuses; connections were dropped. Never shows the URL."""


class EpochChanged(Exception):
    """The server is not the one that was written to before: flushed, replaced or never used."""


class Change(msgspec.Struct, frozen=True):
    """One step of a batch: a letter and, where it concerns one tier, the tier's number.

    ``s`` store, ``r`` remove, ``c`` clear (without a number: all tiers), ``p`` dispatched (speculative), ``x`` read
    the snapshot again. Upper case: not for the stream, the parts of a rewrite that an ``x`` ends. ``p`` and ``x``
    are in the stream only.
    """

    op: str
    keys: array[int]
    """``array('Q')``."""

    @property
    def kind(self) -> str:
        return self.op[0]

    @property
    def tier(self) -> Tier | None:
        return Tier(int(self.op[1])) if len(self.op) > 1 else None


class Entry(msgspec.Struct, frozen=True):
    """One batch of one endpoint as read from its stream."""

    endpoint: str
    id: bytes
    writer: str
    changes: list[Change]


class RedisStore:
    """One client of the shared truth, for one background task: never used by a request.

    `url` as redis-py takes it: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user and password. `budget_s`
    bounds each round trip. Methods raise StoreUnavailable. Raises ValueError for a URL of another scheme.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "kvrouter",
        budget_s: float = 0.5,
        stream_length: int = 1_000,
        retention_s: int = 86_400,
    ) -> None:
        self._namespace = namespace
        self._budget_s = budget_s
        self._stream_length = stream_length
        self._retention_s = retention_s
        self._sha: str | None = None
        # One connection, no retries: a late answer must not cost more than the budget, and never meet another caller.
        self._client: redis.Redis = redis.Redis.from_url(
            url,
            max_connections=1,
            protocol=2,
            socket_connect_timeout=budget_s,
            socket_timeout=budget_s,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def epoch(self) -> str:
        """The server's epoch, made now if it has none."""
        key = f"{self._namespace}:epoch"

        async def ask() -> str:
            await self._client.set(key, secrets.token_hex(8), nx=True)
            return cast("bytes", await self._client.get(key)).decode()

        return await self._within_budget(ask)

    async def endpoints(self) -> set[str]:
        async def ask() -> set[str]:
            members = await cast("Awaitable[set[bytes]]", self._client.smembers(f"{self._namespace}:endpoints"))
            return {member.decode() for member in members}

        return await self._within_budget(ask)

    async def write(self, writer: str, endpoint: str, changes: Sequence[Change]) -> None:
        """One batch of one endpoint."""
        arguments: list[bytes | str | int] = [writer, self._stream_length, self._retention_s]
        for change in changes:
            arguments += [change.op, _to_bytes(change.keys)]
        keys = self._keys(endpoint)

        async def ask() -> None:
            if self._sha is None:
                self._sha = str(await self._client.script_load(_SCRIPT))
            pipe = self._client.pipeline(transaction=False)
            pipe.evalsha(self._sha, len(keys), *keys, *cast("list[str]", arguments))
            pipe.sadd(f"{self._namespace}:endpoints", endpoint)
            await pipe.execute()

        await self._within_budget(ask)

    async def forget(self, endpoint: str) -> None:
        async def ask() -> None:
            pipe = self._client.pipeline(transaction=False)
            pipe.delete(*self._keys(endpoint))
            pipe.srem(f"{self._namespace}:endpoints", endpoint)
            await pipe.execute()

        await self._within_budget(ask)

    async def last_id(self, endpoint: str) -> bytes:
        """The newest id of an endpoint's stream: to be taken before its snapshot."""

        async def ask() -> bytes:
            newest = await self._client.xrevrange(self._keys(endpoint)[3], count=1)
            return cast("bytes", newest[0][0]) if newest else b"0-0"

        return await self._within_budget(ask)

    async def snapshot(self, endpoint: str) -> AsyncIterator[tuple[Tier, array[int]]]:
        """All blocks of an endpoint, a few thousand at a time."""
        for tier, key in zip(Tier, self._keys(endpoint), strict=False):
            cursor = 0
            while True:
                cursor, members = await self._scan(key, cursor)
                if members:
                    yield tier, _from_bytes(b"".join(members))
                if not cursor:
                    break

    async def read(self, positions: Mapping[str, bytes], epoch: str) -> list[Entry]:
        """What was written after the given ids. Raises EpochChanged if the server's epoch is another one."""
        endpoints = {self._keys(endpoint)[3].encode(): endpoint for endpoint in positions}
        streams = {key: positions[endpoint] for key, endpoint in endpoints.items()}

        async def ask() -> list[Any]:
            pipe = self._client.pipeline(transaction=False)
            pipe.get(f"{self._namespace}:epoch")
            if streams:
                pipe.xread(cast("Any", streams), count=_READ_COUNT)
            return await pipe.execute()

        current, *found = await self._within_budget(ask)
        if current is None or current.decode() != epoch:
            raise EpochChanged
        return [
            _entry(endpoints[key], id_, fields)
            for key, items in (found[0] if found and found[0] else ())
            for id_, fields in items
            if fields
        ]

    def _keys(self, endpoint: str) -> list[str]:
        prefix = f"{self._namespace}:{{{endpoint}}}"
        return [f"{prefix}:{name}" for name in ("device", "host", "storage", "stream")]

    async def _scan(self, key: str, cursor: int) -> tuple[int, list[bytes]]:
        async def ask() -> tuple[int, list[bytes]]:
            found = await cast("Awaitable[Any]", self._client.sscan(key, cursor, count=_SCAN_COUNT))
            return int(found[0]), list(found[1])

        return await self._within_budget(ask)

    async def _within_budget(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        try:
            async with asyncio.timeout(self._budget_s):
                return await ask()
        except NoScriptError:
            self._sha = None
            await self._drop_connections()
            raise StoreUnavailable("the server forgot the script") from None
        except (RedisError, OSError) as error:
            # TimeoutError is an OSError. The class says enough; the message may hold an address or a user's name.
            await self._drop_connections()
            raise StoreUnavailable(type(error).__name__) from None
        except asyncio.CancelledError:
            await self._drop_connections()
            raise

    async def _drop_connections(self) -> None:
        """An answer still under way must never be read as the answer to a later command."""
        await self._client.connection_pool.disconnect(inuse_connections=True)


def to_keys(keys: Iterable[int]) -> array[int]:
    return array("Q", keys)


def _to_bytes(keys: array[int]) -> bytes:
    if sys.byteorder == "big":
        keys = keys[:]
        keys.byteswap()
    return keys.tobytes()


def _from_bytes(data: bytes) -> array[int]:
    keys = array("Q")
    keys.frombytes(data[: len(data) - len(data) % 8])
    if sys.byteorder == "big":
        keys.byteswap()
    return keys


def _entry(endpoint: str, id_: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    """Fields keep their order; steps that a later version may add are left out."""
    changes = []
    for name, value in fields.items():
        op = name.partition(b":")[2].decode("ascii", "replace")
        if op[:1] in ("s", "r", "c", "p", "x") and op[1:] in ("", "0", "1", "2"):
            changes.append(Change(op, _from_bytes(value)))
    return Entry(endpoint, id_, fields.get(b"writer", b"").decode("ascii", "replace"), changes)
