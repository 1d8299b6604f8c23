"""Which header fields cross the router, in each direction. PURE.

By deny rule, so that custom fields survive: hop-by-hop fields and what ``Connection`` names (RFC 9110 7.6.1), framing
(each side writes its own), credentials meant for the router, and fields that steer routing (a client must not be able
to make us dial an address: x-prefiller-host-port and its kind).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from router.core import Headers
from router.wire.deadline import DEADLINE, EXPECTED, QUEUE_TTL

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_REQUEST_DENIED = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"authorization",
    b"x-api-key",
    b"x-request-id",
}
_RESPONSE_DENIED = HOP_BY_HOP | {b"x-request-id"}

_ROUTING_CONTROL = frozenset(
    {
        b"x-data-parallel-rank",
        b"x-original-host",
        b"x-original-url",
        b"x-rewrite-url",
        b"x-slo-ttft-ms",
        b"x-slo-tpot-ms",
        b"x-vllm-priority",
        b"epp-profile",
        EXPECTED.encode(),
    }
)
_ROUTING_PREFIXES = (b"x-gateway-", b"x-llm-d-", b"x-kvrouter-")
_ADDRESS = re.compile(
    rb"x-(?:prefill|prefiller|decode|decoder|encode|encoder|worker|backend|upstream|target|engine|data-parallel|kv-)"
    rb"[a-z-]*-(?:url|host|hosts-ports|host-ports?)"
)
"""Where a peer should be dialled, in the manner of llm-d's x-prefiller-host-port: by form, so that a name which some
engine or sidecar of tomorrow believes is dropped as well."""

FAIRNESS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
_SLOS = ("x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tpot-ms")
_ENGINE_PRIORITY = b"x-vllm-priority"
STEERING = frozenset(name.encode() for name in (*FAIRNESS, *OBJECTIVE, *_SLOS, DEADLINE, EXPECTED, QUEUE_TTL)) | {
    _ENGINE_PRIORITY
}
"""Fields that a caller with the right to it may steer by, llm-d's names and its older ones. They are for this router
and end here, but for the priority that vLLM itself reads."""

_SESSION = {
    b"x-session-id",
    b"x-session-token",
    b"x-session-affinity",
    b"x-claude-code-session-id",
    b"session-id",
    b"session_id",
    b"x-smg-routing-key",
}
"""Fields that name a conversation: read for affinity, and passed on (vLLM writes X-Session-ID into its KV events)."""

EXPLAIN = b"x-kvrouter-explain"
"""Asks for the decision in a response header: steers nothing, so anybody may send it."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def is_routing_control(name: bytes) -> bool:
    return (
        name in _ROUTING_CONTROL
        or name.startswith(_ROUTING_PREFIXES)
        or (name.startswith(b"x-") and _ADDRESS.fullmatch(name) is not None)
    )


def _connection_named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    values = [value for name, value in headers if name == b"connection"]
    if not values:
        return frozenset()
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def request_headers(
    raw: Iterable[tuple[bytes, bytes]],
    *,
    forward_authorization: bool = False,
    trusted: frozenset[bytes] = frozenset(),
    steering: frozenset[bytes] = frozenset(),
) -> tuple[Headers, Mapping[str, str]]:
    """(fields that go upstream, fields that steer routing) out of a client's fields, names lower case.

    Routing-control fields are dropped, unless named in `trusted` (then they are read and passed on) or in `steering`,
    which this caller may send (then they are read).
    """
    raw = list(raw)
    named = _connection_named(raw)
    forwarded: list[tuple[bytes, bytes]] = []
    routing: dict[str, str] = {}
    for name, value in raw:
        if name in named:
            continue
        if name in _REQUEST_DENIED:
            if name == b"authorization" and forward_authorization:
                forwarded.append((name, value))
            continue
        if name == EXPLAIN:
            routing["x-kvrouter-explain"] = value.decode("latin-1")
            continue
        if is_routing_control(name):
            if name not in trusted:
                if name not in steering:
                    continue
                if name != _ENGINE_PRIORITY:
                    routing[name.decode("latin-1")] = value.decode("latin-1")
                    continue
            routing[name.decode("latin-1")] = value.decode("latin-1")
        elif name in _SESSION:
            routing[name.decode("latin-1")] = value.decode("latin-1")
        forwarded.append((name, value))
    return tuple(forwarded), routing


def response_headers(raw: Iterable[tuple[bytes, bytes]], *, keep_length: bool = True) -> list[tuple[bytes, bytes]]:
    """Fields of an engine's answer that go to the client, repeated ones kept in order; what this router itself says
    there cannot be said by an engine.

    `keep_length` False: the body is edited on its way, so its length is not the engine's.
    """
    raw = list(raw)
    named = _connection_named(raw)
    return [
        (name, value)
        for name, value in raw
        if name not in _RESPONSE_DENIED
        and name not in named
        and not name.startswith(b"x-kvrouter-")
        and (keep_length or name != b"content-length")
    ]


def accepted_request_id(value: bytes | None) -> str | None:
    """The client's request id if it is safe to log, send on and return; else None (make one).

    It goes into log lines and response headers: anything beyond a short plain token would let a client forge both.
    """
    if value is None or _REQUEST_ID.fullmatch(value) is None:
        return None
    return value.decode("ascii")
