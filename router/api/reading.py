"""A client's request out of its head and body: who asks, what for, and the bytes that may go upstream. PURE."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from router.api.callers import TrustedPeers, allowed_priority, caller, steering_of
from router.api.isolation import TenantSalt
from router.api.keys import Key
from router.api.times import time_allowed_s
from router.core import Api, InferenceRequest
from router.errors import InvalidRequest
from router.wire.headers import request_headers
from router.wire.kv_transfer import strip_generate_params, strip_transfer_params
from router.wire.openai import GENERATE_PATH, NOTHING, parse_request
from router.wire.priority import with_priority
from router.wire.splice import splice

_UNSENDABLE = re.compile(rb"[\x00-\x20\x7f]")
"""Bytes that stand in no request line, which the parser may still let through in a query."""


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_body_bytes: int
    forward_authorization: bool = False
    trusted_headers: frozenset[bytes] = frozenset()
    trust_kv_transfer_params: bool = False
    trusted_peers: TrustedPeers = TrustedPeers()
    strip_untrusted_priority: bool = True
    """Where there are rights at all, i.e. keys or trusted peers."""
    tenant_salt: TenantSalt | None = None
    """None: tenants share what engines have cached."""


def read_request(
    settings: FrontSettings,
    scope: Any,
    body: bytes,
    *,
    request_id: str,
    path: str,
    api: Api,
    arrived_at: float,
    key: Key,
    anybody: bool,
) -> InferenceRequest:
    """`anybody`: no key is asked for. Raises `RouterError` for what cannot be read or sent on."""
    headers = scope["headers"]
    trusted = key.trusted or _from(scope, settings.trusted_peers)
    forwarded, routing = request_headers(
        headers,
        forward_authorization=settings.forward_authorization,
        trusted=settings.trusted_headers,
        steering=steering_of(key, trusted),
    )
    query: bytes = scope["query_string"]
    if query and _UNSENDABLE.search(query) is not None:
        raise InvalidRequest("The query holds a space or a control byte: percent-encode it.")
    parsed = (
        parse_request(api, path, body, content_type=_content_type(headers))
        if body or api is not Api.OTHER or path == GENERATE_PATH
        else NOTHING
    )
    if not settings.trust_kv_transfer_params:
        if path == GENERATE_PATH:
            body = strip_generate_params(body)
        elif parsed.has_kv_transfer_params:
            body = strip_transfer_params(body)
    if parsed.has_priority and not trusted and settings.strip_untrusted_priority:
        body = _limited(settings, body, parsed.priority, key, anybody)
    asking = caller(key, trusted, routing, parsed.priority)
    within_s = time_allowed_s(headers, routing) if routing else None
    salt = parsed.cache_salt
    if settings.tenant_salt is not None and api is not Api.OTHER:
        salt = settings.tenant_salt(asking.tenant, salt)
        body = splice(body, set={"cache_salt": msgspec.json.encode(salt)})
    return InferenceRequest(
        request_id=request_id,
        api=api,
        path=f"{path}?{query.decode('latin-1')}" if query else path,
        method=scope["method"],
        body=body,
        headers=forwarded,
        routing_headers=routing,
        caller=asking,
        model=parsed.model,
        stream=parsed.stream,
        max_tokens=parsed.max_tokens,
        n=parsed.n,
        include_usage=parsed.include_usage,
        cache_salt=salt,
        fields=parsed.fields,
        arrived_at=arrived_at,
        deadline_at=None if within_s is None else arrived_at + within_s,
    )


def _limited(settings: FrontSettings, body: bytes, asked: int | None, key: Key, anybody: bool) -> bytes:
    """`body` with no more priority (`asked` is its number, None what cannot be read as one) than `key` may have."""
    if anybody and not settings.trusted_peers:
        return body
    allowed = None if asked is None else allowed_priority(key, False, -asked)
    if allowed is not None and asked == -allowed:
        return body
    return with_priority(body, None if allowed is None else -allowed)


def _from(scope: Any, peers: TrustedPeers) -> bool:
    client = scope.get("client")
    return client is not None and peers.hold(client[0])


def _content_type(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"content-type":
            return value.decode("latin-1")
    return "application/json"
