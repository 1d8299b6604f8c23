"""Protocols at the edges where I/O begins. The director and the app know these; adapters implement them.

No implementation lives here, and nothing here is a PURE seam: a Protocol stands where the world is touched, and
nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from router.core import Endpoint, EndpointMatch, EndpointState, Headers, InferenceRequest, Inflight, TokenizedPrompt


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...


class Tokenization(Protocol):
    """`router.tokenization`: a request's prompt as token ids and block hashes."""

    async def tokenize(self, request: InferenceRequest, candidates: Sequence[EndpointState]) -> TokenizedPrompt:
        """Never raises for what a client or an engine says: the last resort is an estimate or an empty prompt.

        `candidates` are the endpoints that serve the model: their cards give the model's root and whether its name
        is a LoRA adapter's, and one of them may be asked (``/tokenize``) when there is no local tokenizer.
        """
        ...


class PrefixIndex(Protocol):
    """The KV index as the director uses it; a lookup never leaves the process and never fails a request."""

    def match(self, block_hashes: Sequence[int]) -> Mapping[str, EndpointMatch]:
        """Endpoint id -> leading blocks held; endpoints that hold nothing are absent."""
        ...

    def speculate(self, endpoint_id: str, block_hashes: Sequence[int]) -> None:
        """The chain was dispatched to this endpoint: count it as held until its events say so or a TTL passes.

        For an endpoint without events this is the history that its approximate entries come from.
        """
        ...


class SharedLoad(Protocol):
    """`router.sharing`: what other routers over the same engines have in flight. Never waits for anybody."""

    def others(self) -> Mapping[str, Inflight]:
        """Endpoint id -> the sum over all other routers, as last heard; absent where they have nothing."""
        ...


class EndpointPool(Protocol):
    """`router.pool`: all endpoints with their newest snapshots."""

    def snapshot(self) -> Sequence[EndpointState]:
        """Immutable; the same object until something changes."""
        ...

    def report_failure(self, endpoint: Endpoint) -> None:
        """A connect failure, reset or time-out seen on the request path: passive health."""
        ...

    def report_error(self, endpoint: Endpoint) -> None:
        """An answer of 500, 502 or 504: each may be its request's fault, a row of them is the endpoint's."""
        ...

    def on_brink(self, endpoint: Endpoint) -> bool:
        """Whether one more `report_error` would take it out."""
        ...

    def excuse(self, endpoint: Endpoint) -> None:
        """The errors it answered were its requests' fault."""
        ...

    def report_success(self, endpoint: Endpoint) -> None: ...

    def usable(self, endpoint_id: str) -> bool:
        """Whether it may get a request now: it is in the pool, neither unhealthy nor draining."""
        ...


class UpstreamResponse(Protocol):
    """An engine's answer whose first body byte, or end, has already come."""

    status: int
    headers: Headers
    """As sent, hop-by-hop and framing fields included: the caller filters."""

    def read_nowait(self) -> bytes:
        """What has arrived and was not read yet; b"" says nothing about the end: `read` then waits or tells."""
        ...

    async def read(self) -> bytes:
        """Body bytes as they come, freed of transfer framing, all that has arrived in one piece; b"" at the end.

        Raises `UpstreamBroken` if the engine cuts the body short of its framing, `UpstreamSilent` past the idle time,
        `UpstreamAbandoned` past the shorter one of an endpoint that is given up.
        """
        ...

    async def close(self) -> None:
        """Idempotent. Before the end it closes the connection, which aborts the engine's work; after, it pools it."""
        ...


class Reliance(NamedTuple):
    """An answer that needs another endpoint than the one it is asked of: what it is computed from lies there."""

    url: str
    waits: Callable[[], bool]
    """Whether the answer may still be waiting for it; asked once the other endpoint is gone."""


class Upstream(Protocol):
    """`router.upstream.relay`: the streaming hot path."""

    async def open(
        self,
        endpoint: Endpoint,
        method: bytes,
        path: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        *,
        first_byte_timeout_s: float | None = None,
        relies_on: Reliance | None = None,
    ) -> UpstreamResponse:
        """Sends the request and waits for head and first body byte (or end).

        `headers` must not hold framing, host or hop-by-hop fields: the relay writes its own. Raises `UpstreamRefused`
        (no connection, nothing sent), `UpstreamBroken` (cut or malformed), `UpstreamSilent` (time-out),
        `UpstreamAbandoned` (the endpoint is given up meanwhile), `UpstreamOrphaned` (the one that it relies on is gone
        meanwhile). Cancelling closes the connection.
        """
        ...


CUT = "cut by the router"
"""Why the router itself cancels a journey (shutdown); every other cancellation is the client's leaving."""


class Reply(Protocol):
    """The client's side of one exchange. Calls wait while the client reads slowly."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None: ...

    async def send(self, chunk: bytes) -> None:
        """Forwards a non-empty piece of the body at once."""
        ...

    async def end(self, chunk: bytes = b"") -> None:
        """The body is complete. An exchange that never gets here is closed so that the client sees the cut."""
        ...


class UpstreamError(Exception):
    """An engine could not be reached or did not keep to HTTP. Not a `RouterError`: the legs decide what follows."""

    kind: str = "broken"
    """A metric label."""


class UpstreamRefused(UpstreamError):
    """No connection: nothing was sent."""

    kind = "refused"


class UpstreamBroken(UpstreamError):
    """The connection closed, or the answer was malformed, before its end."""


class UpstreamSilent(UpstreamError):
    """No byte within the time allowed."""

    kind = "silent"


class UpstreamAbandoned(UpstreamError):
    """The endpoint turned out not to answer while the request waited for it: the router waits no longer."""

    kind = "abandoned"


class UpstreamOrphaned(UpstreamError):
    """Another endpoint is gone that the answer had to be computed from; the one that was asked may be well."""

    kind = "orphaned"


class UpstreamAborted(UpstreamError):
    """The engine ended the answer in good form without having finished it: an abort that nobody asked for."""

    kind = "abort"


class Waker(Protocol):
    async def until(self, able: Callable[[], bool], model: str | None) -> None:
        """Returns when `able`, or when there is nothing to wait for. Raises NoEndpoint when it may wait no longer."""
        ...
