"""The settings tree: every key, its type, its default and what it means. PURE.

Frozen, and unknown keys are refused. The docstring under a field is its documentation: `docs/configuration.md` is
generated from this file (`python -m router.settings.doc`). Names ending in ``_s`` are seconds, in ``_ms``
milliseconds, in ``_bytes`` bytes.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, SecretStr, Strict, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from kvindex.redis_address import parse_address
from router.core import Role
from router.scheduling.config import SchedulingSettings
from router.settings.capacity import CapacitySettings
from router.settings.flow import FlowControlSettings
from router.settings.keys import ApiKeys, RateSettings
from router.settings.section import Section

Seconds = Annotated[float, Field(gt=0)]
SecondsOrZero = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
RoleName = Annotated[Role, Strict(False)]
"""Written as text, which strict validation would not take for a member."""


def engine_url(value: str) -> str:
    """An engine's base address in its one spelling, without a trailing slash. Raises ValueError with the mend."""
    try:
        parts = urlsplit(value.strip())
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"is not an address ({error}): write it like http://10.0.0.5:8000") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address like http://10.0.0.5:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password: put the engine's key into api_key")
    if parts.query or parts.fragment:
        raise ValueError("must not hold a query or fragment: only http(s)://host[:port][/prefix]")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError("must be the engine's root: leave the /v1 off, the router adds it")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def _redis_url(value: SecretStr) -> SecretStr:
    parse_address(value.get_secret_value())
    return value


def _host_port(value: str) -> str:
    try:
        parts = urlsplit(f"udp://{value}")
        _ = parts.port, ip_address(parts.hostname or "")
    except ValueError:
        raise ValueError(
            "must be an IP address with or without a port, like 10.0.0.10, 10.0.0.10:5353 or [fd00::1]:53"
        ) from None
    return value


def _zmq_endpoint(value: str) -> str:
    if not value.startswith(("tcp://", "ipc://")):
        raise ValueError("must be a ZMQ address like tcp://10.0.0.5:5557")
    return value


def _bare_url(value: Any) -> Any:
    """An endpoint may be written as its address alone."""
    return {"url": value} if isinstance(value, str) else value


def _lower(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(value.strip().lower() for value in values)


def _networks(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ip_network(value)
        except ValueError as error:
            raise ValueError(f"holds no network ({error}): write an address or a CIDR like 10.0.0.0/8") from None
    return values


EngineUrl = Annotated[str, AfterValidator(engine_url)]
ZmqEndpoint = Annotated[str, AfterValidator(_zmq_endpoint)]


class ServerSettings(Section):
    """The side that clients see."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` or `::` for every interface."""
    port: Port = 8000
    """Port to listen on."""
    workers: int = Field(default=1, ge=1, le=256)
    """Router processes behind the one listener. More than one share what routers share: through `redis.url`, else
    through an embedded Valkey (`pip install kvrouter[embedded]`)."""
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
    admin_host: str = "127.0.0.1"
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
    trusted_peers: Annotated[tuple[str, ...], AfterValidator(_networks)] = ()
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
    trusted_headers: Annotated[tuple[str, ...], AfterValidator(_lower)] = ()
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
    kv_events: KvEventsSettings | Literal[False] | None = None
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
    nameserver: Annotated[str, AfterValidator(_host_port)] | None = None
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


class TokenizationSettings(Section):
    """Prompts as token ids."""

    default: str | None = None
    """Tokenizer of every model that `models` does not name: a folder or a hub id; null: the model's root as the engine
    tells it, if that is a folder here or lies in the hub's cache."""
    models: dict[str, str] = Field(default_factory=dict)
    """Served model name (or root) to tokenizer: a folder or a hub id, loaded at the start."""
    remote: bool = True
    """Ask an engine's `/tokenize` when there is no local tokenizer."""
    estimate: bool = True
    """Estimate from the text when there is neither; labelled as such, never taken for exact."""
    inline_max_bytes: int = Field(default=16384, ge=0)
    """Prompts up to this size are tokenized at once, larger ones in a worker."""
    workers: Count = 2
    """Worker threads for large prompts."""
    queue: Count = 64
    """Large prompts that may wait for a worker; one more is estimated."""


class IndexSettings(Section):
    """The KV index."""

    backend: Literal["memory", "redis"] = "memory"
    """`memory`: each router its own; `redis`: shared by all routers with the same `redis.namespace`."""
    block_size: Literal["auto"] | Count = "auto"
    """Tokens a block; `auto`: what the engines report."""
    speculative_ttl_s: Seconds = 2.0
    """How long a dispatched prompt counts as cached before the engine's own events must say so."""
    approximate_ttl_s: Seconds = 600.0
    """The same for engines without KV events, whose cache is guessed from what was sent to them."""
    max_blocks: Count = 4_000_000
    """Blocks remembered over all endpoints."""


class RedisSettings(Section):
    """Shared state of several routers."""

    url: Annotated[SecretStr, AfterValidator(_redis_url)] | None = None
    """`redis://[user:password@]host:port/db`, `redis+sentinel://...@host:port,host:port/service`,
    `redis+cluster://...@host:port,host:port` (each with `rediss` for TLS) or `unix://path`."""
    ca_file: str | None = None
    """Certificate authorities (PEM) to check a TLS server's certificate against; null: the system's."""
    namespace: str = Field(default="kvrouter", pattern=r"^[A-Za-z0-9._:\-]{1,64}$")
    """Prefix of every key; routers with the same one share an index."""
    command_timeout_s: Seconds = 0.5
    """Time for a connection to stand and for each command. No request waits for Redis; past this the router goes on
    from memory and tries again."""


class SchedulingTree(SchedulingSettings):
    """Which plugins choose. See `docs/plugins.md`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    endpoint_picker_config: str | None = None
    """An llm-d `EndpointPickerConfig` (YAML) to take plugins, profiles and decider from instead."""


class PdSettings(Section):
    """Prefill on one engine, decode on another."""

    enabled: bool | Literal["auto"] = "auto"
    """`auto`: when there is an endpoint of role `prefill`."""
    retries: int = Field(default=1, ge=0, le=16)
    """Other prefill endpoints to try before the decode endpoint prefills by itself."""
    prefill_timeout_s: Seconds = 60.0
    """Time for the prefill leg to answer."""


class RetrySettings(Section):
    """What happens when an engine fails before its first byte."""

    max_attempts: int = Field(default=3, ge=1, le=16)
    """Endpoints tried for one request, the first included."""
    on_status: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (502, 503, 504)
    """Engine statuses that count as failed and go to the next endpoint."""
    backoff_ms: float = Field(default=25.0, ge=0)
    """Pause before the second attempt, doubled for each further one, with jitter."""
    backoff_max_ms: float = Field(default=1000.0, ge=0)
    """Longest such pause."""
    within_s: Seconds = 60.0
    """No further attempt begins later than this after the request arrived."""
    budget_ratio: float = Field(default=0.2, ge=0, le=1)
    """Retries allowed for each request of the last 10 s, over `budget_reserve`; past both, the first failure is the
    client's answer: when everything fails, retries must not multiply the load."""
    budget_reserve: int = Field(default=100, ge=0)
    """Retries allowed in 10 s however few requests there are."""


class UsageSettings(Section):
    """Token counts of streams."""

    inject_stream_usage: bool = False
    """Ask engines for usage on streams whose client did not; the extra chunk is taken out again. vLLM then puts
    `system_fingerprint` into that chunk instead of the last choice's, so clients no longer see it."""


class MetricsSettings(Section):
    """What `/metrics` says."""

    enabled: bool = True
    """Serve `/metrics`."""


class LogSettings(Section):
    """What is written to standard error, and the request log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level written."""
    format: Literal["text", "json"] = "text"
    """`json`: one object a line."""
    requests: str | None = None
    """File that gets a line a request, to be replayed (`docs/replay.md`): times, lengths, numbered block hashes,
    decision and outcome, no prompt; null: none is written."""


class Settings(BaseSettings):
    """The whole tree. Made from its arguments alone; `router.settings.load` is what reads files and environment."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        env_prefix="KVROUTER_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        env_parse_none_str="null",
    )

    server: ServerSettings = ServerSettings()
    limits: LimitsSettings = LimitsSettings()
    endpoints: Annotated[tuple[Annotated[EndpointSettings, BeforeValidator(_bare_url)], ...], Strict(False)] = ()
    """Engines, as addresses or as mappings."""
    discovery: DiscoverySettings = DiscoverySettings()
    pool: PoolSettings = PoolSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    tokenization: TokenizationSettings = TokenizationSettings()
    index: IndexSettings = IndexSettings()
    redis: RedisSettings = RedisSettings()
    scheduling: SchedulingTree = SchedulingTree()
    pd: PdSettings = PdSettings()
    retries: RetrySettings = RetrySettings()
    flow_control: FlowControlSettings = FlowControlSettings()
    capacity: CapacitySettings = CapacitySettings()
    usage: UsageSettings = UsageSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)
