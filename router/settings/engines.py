"""Settings of engines: which there are, how they are found and watched, how they are reached. PURE."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from router.core import Role
from router.settings.section import Section
from router.settings.words import (
    Count,
    EngineUrl,
    HostPort,
    Never,
    Port,
    RoleName,
    Seconds,
    SecondsOrZero,
    ZmqEndpoint,
)


class KvEventsSettings(Section):
    """Where an engine publishes its KV events."""

    endpoint: ZmqEndpoint
    """ZMQ PUB socket, e.g. `tcp://10.0.0.5:5557`; data-parallel rank n uses port + n."""
    replay_endpoint: ZmqEndpoint | None = None
    """ZMQ ROUTER socket that fills gaps, e.g. `tcp://10.0.0.5:5558`."""
    topic: str = ""
    """Subscription prefix; empty for everything."""


class EndpointSettings(Section):
    """One engine address. May be written as the bare address."""

    url: EngineUrl
    """Address, `http(s)://host[:port][/prefix]` without `/v1`."""
    role: RoleName = Role.BOTH
    """What it may be chosen for: `both`, `prefill` or `decode`."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._:/\-]{1,128}$")
    """Shown in headers, metrics and logs instead of `host:port`."""
    api_key: SecretStr | None = None
    """Bearer token for this engine; null: `upstream.api_key`."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Free labels, for plugins to look at."""
    models: tuple[str, ...] = ()
    """Model names it serves; empty: asked from the engine (`/v1/models`)."""
    health_path: str = Field(default="/health", pattern=r"^/[^\s?#]*$")
    """Path of its health check."""
    data_parallel_size: Count | None = None
    """Data-parallel ranks behind this address; null: discovered."""
    kv_events: KvEventsSettings | Never | None = None
    """Where its KV events are; null: asked from the engine (`/kv_event_sources`); false: it has none."""


class DnsSettings(Section):
    """One DNS name whose answers are endpoints."""

    name: str = Field(min_length=1)
    """Name to resolve, e.g. `vllm-decode.default.svc.cluster.local`."""
    kind: Literal["a", "srv"] = "a"
    """`a`: A and AAAA records with `port`; `srv`: SRV records, which carry their port."""
    port: Port | None = None
    """Engines' port; needed by `a`."""
    scheme: Literal["http", "https"] = "http"
    """How to reach them."""
    role: RoleName = Role.BOTH
    """Role of every endpoint found."""
    interval_s: Seconds = 5.0
    """How often to resolve."""
    nameserver: HostPort | None = None
    """IP address of the server to ask, `address[:port]`; null: the system's."""

    @model_validator(mode="after")
    def _needs_port(self) -> DnsSettings:
        if self.kind == "a" and self.port is None:
            raise ValueError("has no port: A records carry none, so add the engines' port, or use kind: srv")
        return self


class DiscoverySettings(Section):
    """Endpoints that come and go."""

    dns: tuple[DnsSettings, ...] = ()
    """DNS names to follow."""


class PoolSettings(Section):
    """How endpoints are watched."""

    probe_interval_s: Seconds = 2.0
    """How often `/health` is asked."""
    probe_timeout_s: Seconds = 2.0
    """When a probe counts as failed."""
    healthy_after: Count = 1
    """Good probes in a row that make an endpoint healthy."""
    unhealthy_after: Count = 3
    """Failures in a row (probes, or connects and resets seen on requests) that make it unhealthy."""
    scrape_interval_s: Seconds = 1.0
    """How often `/metrics` is read."""
    max_ejected_share: float = Field(default=0.5, ge=0, le=1)
    """Of the endpoints that can stand in for one another, how many may be out because requests failed there or because
    they stand still. One always may, the last one in service never; probes are believed without a bound."""
    eject_after_errors: Count = 5
    """Answers of 500, 502 or 504 in a row that take an endpoint out; 503 and 4xx never do."""
    stall_after_s: Seconds = 30.0
    """An endpoint with requests under way that sends no byte and whose metrics stand still for so long, while others
    work, is out for that time, doubled each time it happens again, up to 300 s."""
    slow_start_s: SecondsOrZero = 30.0
    """An endpoint that comes into service beside others, or comes back, gets requests in flight up to a growing share
    of what those have, over this time; 0 for no such ramp."""
    models_interval_s: Seconds = 30.0
    """How often `/v1/models` and the engine's identity are read again."""


class UpstreamSettings(Section):
    """Connections to engines."""

    api_key: SecretStr | None = None
    """Bearer token for every engine that has no `api_key` of its own."""
    connect_timeout_s: Seconds = 2.0
    """Time for a connection to stand."""
    first_byte_timeout_s: Seconds = 300.0
    """Time from the sent request to the first byte of the answer's body: queueing and prefill."""
    idle_timeout_s: Seconds = 300.0
    """Longest pause between two bytes of an answer."""
    unhealthy_idle_timeout_s: Seconds = 10.0
    """The same while the endpoint fails its probes, sleeps, is paused or stalls; what waits there for a first byte goes
    to another endpoint at once."""
    keepalive_s: Seconds = 4.0
    """How long an idle connection is kept; below the engine's own keep-alive (5 s for vLLM)."""
    max_idle_per_endpoint: Count = 256
    """Idle connections kept for one endpoint."""
    verify: bool = True
    """Check certificates of https:// engines."""
    ca_file: str | None = None
    """Certificate authorities (PEM) to check them against; null: the system's."""
    client_cert_file: str | None = None
    """Certificate chain (PEM) to show to https:// engines that ask for one (mTLS); new content is taken over."""
    client_key_file: str | None = None
    """Its private key (PEM, without a password); null: it is in `client_cert_file`."""
    tls_server_name: str | None = None
    """Name that https:// engines' certificates must have, and that is asked for (SNI); null: the host of each url."""
