"""What the side that clients see is given: limits, keys, gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from router.api.callers import TrustedPeers
from router.api.gate import Gate, Surface
from router.api.http_protocol import ClientLimits
from router.api.isolation import TenantSalt
from router.api.keys import Key, KeyRing
from router.api.reading import FrontSettings
from router.flowcontrol.key_limits import Rate
from router.prompt_limit import PromptLimit
from router.settings import ApiKeySettings, Settings
from router.settings.words import revealed
from router.wire.hosts import is_loopback

_RATES = tuple(
    f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")
)
_EXPLAINING = ("x-kvrouter-endpoint", "x-kvrouter-prefill-endpoint", "x-kvrouter-matched-tokens", "x-kvrouter-decision")


def front_settings(settings: Settings) -> FrontSettings:
    server = settings.server
    return FrontSettings(
        max_body_bytes=server.max_body_bytes,
        forward_authorization=server.forward_authorization,
        trusted_headers=frozenset(name.encode("latin-1", "replace") for name in server.trusted_headers),
        trust_kv_transfer_params=server.trust_client_kv_transfer_params,
        trusted_peers=TrustedPeers(server.trusted_peers),
        strip_untrusted_priority=server.strip_untrusted_priority,
        tenant_salt=None
        if server.tenant_salt_secret is None
        else TenantSalt(revealed(server.tenant_salt_secret) or ""),
    )


def client_limits(settings: Settings) -> ClientLimits:
    server = settings.server
    return ClientLimits(
        header_bytes=server.max_header_bytes,
        head_s=server.head_timeout_s,
        body_idle_s=server.body_idle_timeout_s,
        body_s=server.body_timeout_s,
        send_s=server.send_timeout_s,
        connections=server.max_connections,
    )


def key_rates(settings: Settings) -> dict[str, Rate]:
    """By the keys' names, and under "" of those who come without one."""
    default, burst_s = settings.limits, settings.limits.burst_s
    rates = {"": default} | {entry.name: entry.rate or default for entry in settings.server.api_keys}
    return {
        name: Rate(
            requests_per_min=rate.requests_per_min,
            tokens_per_min=rate.tokens_per_min,
            concurrent=rate.concurrent,
            burst_s=burst_s,
        )
        for name, rate in rates.items()
    }


def prompt_limit(settings: Settings) -> PromptLimit:
    limits = settings.limits
    return PromptLimit(tokens=limits.max_prompt_tokens, by_model=limits.refuse_over_model_len)


def key_ring(settings: Settings) -> KeyRing:
    return KeyRing(_key(entry) for entry in settings.server.api_keys)


def admin_ring(settings: Settings) -> KeyRing:
    return KeyRing(_key(entry) for entry in settings.server.admin_keys)


def gates(settings: Settings, clients: Callable[[], KeyRing]) -> dict[Surface, Gate]:
    """One for each listener, by what it serves."""
    server, ring = settings.server, admin_ring(settings)
    if server.admin_port is None:
        bound = {Surface.ALL: server.host}
    else:
        bound = {Surface.CLIENTS: server.host, Surface.ADMINISTRATION: server.admin_host}
    return {
        surface: Gate(ring, clients, loopback=is_loopback(host), surface=surface) for surface, host in bound.items()
    }


def _key(entry: ApiKeySettings) -> Key:
    return Key(
        digest=bytes.fromhex(entry.digest),
        name=entry.name,
        tenant=entry.tenant or entry.name,
        objectives=entry.objectives,
        max_priority=entry.max_priority,
        trusted=entry.trusted,
    )


def with_cors(app: Any, settings: Settings) -> Any:
    """The ASGI application, behind CORS headers where origins are configured."""
    origins = settings.server.cors_origins
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", *_RATES, *_EXPLAINING],
    )
