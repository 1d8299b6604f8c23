"""What goes wrong with a Redis, in words: the reason with its mend, and a log that says it once in a while.

Reasons name commands, host names at most by their kind, and never a URL, a user or a password.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

_AGAIN_S = 60.0
_BY_CLASS: tuple[tuple[type[BaseException], str], ...] = (
    (NoPermissionError, "its user may not use the keys of redis.namespace: allow them in its ACL"),
    (MasterNotFoundError, "no sentinel tells a primary: correct the service's name, the sentinels or their password"),
    (ReadOnlyError, "it is a replica, which takes no writes: name the primary, or its sentinels, in redis.url"),
    (OutOfMemoryError, "its memory is full: raise its maxmemory"),
    (BusyLoadingError, "it is still loading its data"),
    (ClusterDownError, "its cluster is down"),
    (RedisClusterException, "no node answers as one of a cluster: start it, or correct redis.url"),
    (InvalidResponse, "what answers is no Redis: correct redis.url"),
)
_BY_CAUSE: tuple[tuple[type[BaseException], str], ...] = (
    (ssl.SSLCertVerificationError, "its certificate is not trusted ({}): give its authority as redis.ca_file"),
    (ssl.SSLError, "TLS with it fails ({}): does it speak TLS, and does it want a client's certificate?"),
    (socket.gaierror, "its host name is not known: correct redis.url"),
    (ConnectionRefusedError, "nobody listens there: start it, or correct redis.url"),
    (FileNotFoundError, "there is no socket file at that path: start it, or correct redis.url"),
    (PermissionError, "its socket file may not be opened: give the router's user the right"),
)
_BY_TEXT: tuple[tuple[str, str], ...] = (
    ("db index is out of range", "it has no database of that number: correct redis.url"),
    ("wrongtype", "a key under redis.namespace holds what no router wrote: delete it, or give another namespace"),
    ("cluster support disabled", "it is no cluster: write redis:// in redis.url"),
    ("unknown command", "it does not know a command (is it a sentinel, or older than Redis 7?): correct redis.url"),
    ("connect call failed", "nobody listens there: start it, or correct redis.url"),
    ("connection refused", "nobody listens there: start it, or correct redis.url"),
)
_CLOSED = "it closed the connection: does it speak TLS (rediss://), and does it want a client's certificate?"
_COMMAND = re.compile(r"'([a-z|]{2,40})' command")


class StoreUnavailable(Exception):
    """The server cannot be reached, is too slow, or refuses; connections were dropped. Says why and what mends it."""


def reason(error: BaseException, budget_s: float) -> str:
    """Why a call failed and what mends it, a phrase about the server. PURE."""
    text = str(error)
    if isinstance(error, AuthenticationError):
        if "required" in text.lower():
            return "it wants a password: put it into redis.url"
        return "it refuses the user or the password: correct them in redis.url"
    if isinstance(error, NoPermissionError) and (command := _COMMAND.search(text)) is not None:
        return f"its user may not use {command[1].upper()}: allow it in its ACL"
    for kind, phrase in _BY_CLASS:
        if isinstance(error, kind):
            return phrase
    chain = list(_chain(error))
    for cause in chain:
        for kind, phrase in _BY_CAUSE:
            if isinstance(cause, kind):
                why = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or type(cause).__name__
                return phrase.format(why)
    for piece, phrase in _BY_TEXT:
        if piece in text.lower():
            return phrase
    if isinstance(error, RedisTimeoutError | TimeoutError):
        return f"it does not answer within {budget_s:g} s (redis.command_timeout_s): is redis.url right, TLS and all?"
    if isinstance(error, ResponseError):
        return f"it refuses: {''.join(filter(str.isprintable, text))[:120]}"
    if isinstance(error, RedisConnectionError | ConnectionError):
        return _CLOSED
    return type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(8):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


class Complaint:
    """Says that something does not work when it begins, when the reason changes, and once a minute while it lasts.

    What is no `StoreUnavailable` nobody foresaw: it is said with where it came from.
    """

    def __init__(self, log: logging.Logger, what: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` follows: e.g. "the index is not shared"."""
        self._log = log
        self._what = what
        self._clock = clock
        self._said: str | None = None
        self._said_at = 0.0

    def about(self, trouble: Exception) -> None:
        foreseen = isinstance(trouble, StoreUnavailable)
        why, now = str(trouble) if foreseen else repr(trouble), self._clock()
        if why != self._said or now - self._said_at >= _AGAIN_S:
            self._said, self._said_at = why, now
            level, where = (logging.WARNING, None) if foreseen else (logging.ERROR, trouble)
            self._log.log(level, "Redis: %s; %s", self._what, why, exc_info=where)

    def over(self) -> bool:
        """It works. Whether it was said not to."""
        said, self._said = self._said is not None, None
        return said
