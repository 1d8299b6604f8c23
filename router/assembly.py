"""From settings to what each part is given: values and factories, no part is started here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.middleware.cors import CORSMiddleware

from kvindex.memory import MemoryIndex
from kvindex.redis_board import Load, RedisBoard
from kvindex.redis_index import RedisIndex
from kvindex.redis_link import RedisLink
from kvindex.redis_store import RedisStore
from router.api.callers import TrustedPeers
from router.api.front import FrontSettings
from router.api.gate import Gate, Surface
from router.api.http_protocol import ClientLimits
from router.api.isolation import TenantSalt
from router.api.keys import Key, KeyRing
from router.controls import EngineTokenize
from router.errors import ConfigError
from router.flowcontrol.key_limits import KeyLimits, Rate
from router.flowcontrol.objectives import Objective, Objectives
from router.flowcontrol.queues import Limits as QueueSize
from router.flowcontrol.queues import QueueLimits, Queues
from router.flowcontrol.saturation import (
    ConcurrencyDetector,
    Detector,
    EitherDetector,
    Unlimited,
    UtilizationDetector,
    Watch,
)
from router.indexing import IndexingSettings
from router.legs import LegSettings
from router.observability.requestlog import RequestLog
from router.plugins.builtin import builtin_registry
from router.pool.discovery import Discovery
from router.pool.dns_discovery import DnsDiscovery, DnsName
from router.pool.health import HealthPolicy
from router.pool.prober import ProbePolicy
from router.pool.scraper import ScrapePolicy
from router.pool.spec import EndpointSpec, KvEventsSpec
from router.pool.stall import StallPolicy
from router.ports import Clock
from router.prompt_limit import PromptLimit
from router.rate_sharing import RateSharing
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.epc import EpcResult, load_epc
from router.scheduling.profile import PluginFailed
from router.scheduling.registry import Registry
from router.scheduling.scheduler import Scheduler
from router.settings import ApiKeySettings, DnsSettings, EndpointSettings, KvEventsSettings, Settings
from router.tokenization.loader import load_tokenizer
from router.tokenization.registry import Tokenizers
from router.tokenization.remote import RemoteTokenizer
from router.tokenization.service import ServiceLimits, TokenizationService
from router.upstream.connection import Limits
from router.upstream.control import ControlClient
from router.upstream.relay import RelayOptions
from router.wire.hosts import is_loopback

_TOKENIZE_S = 1.0
_RATES = tuple(
    f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")
)
_EXPLAINING = ("x-kvrouter-endpoint", "x-kvrouter-prefill-endpoint", "x-kvrouter-matched-tokens", "x-kvrouter-decision")


def endpoint_specs(settings: Settings) -> list[EndpointSpec]:
    """The configured endpoints. Raises `ConfigError`."""
    return [_endpoint_spec(endpoint, settings) for endpoint in settings.endpoints]


def _endpoint_spec(endpoint: EndpointSettings, settings: Settings) -> EndpointSpec:
    events = endpoint.kv_events
    return EndpointSpec(
        url=endpoint.url,
        role=endpoint.role,
        name=endpoint.name,
        api_key=_secret(endpoint.api_key or settings.upstream.api_key),
        labels=dict(endpoint.labels),
        models=endpoint.models,
        data_parallel_size=endpoint.data_parallel_size,
        kv_events=_events_spec(events) if isinstance(events, KvEventsSettings) else None,
        publishes_kv_events=events is not False,
        health_path=endpoint.health_path,
    )


def _events_spec(events: KvEventsSettings) -> KvEventsSpec:
    return KvEventsSpec(endpoint=events.endpoint, replay_endpoint=events.replay_endpoint, topic=events.topic)


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def discoveries(settings: Settings) -> Mapping[str, Discovery]:
    """DNS names by what makes each another: a changed one is followed anew."""
    return {f"dns {name.model_dump_json()}": _dns(name, settings) for name in settings.discovery.dns}


def _dns(name: DnsSettings, settings: Settings) -> DnsDiscovery:
    api_key = _secret(settings.upstream.api_key)
    nameserver = None
    if name.nameserver is not None:
        parts = urlsplit(f"udp://{name.nameserver}")
        nameserver = (parts.hostname or "", parts.port or 53)
    return DnsDiscovery(
        DnsName(
            name=name.name,
            kind=name.kind,
            port=name.port,
            scheme=name.scheme,
            interval_s=name.interval_s,
            nameserver=nameserver,
        ),
        lambda url: EndpointSpec(url=url, role=name.role, api_key=api_key),
    )


def health_policy(settings: Settings) -> HealthPolicy:
    pool = settings.pool
    return HealthPolicy(
        probes_up=pool.healthy_after,
        probes_down=pool.unhealthy_after,
        request_failures_down=pool.unhealthy_after,
        errors_down=pool.eject_after_errors,
    )


def probe_policy(settings: Settings) -> ProbePolicy:
    pool = settings.pool
    return ProbePolicy(
        interval_s=pool.probe_interval_s, timeout_s=pool.probe_timeout_s, refresh_models_s=pool.models_interval_s
    )


def stall_policy(settings: Settings) -> StallPolicy:
    after_s = settings.pool.stall_after_s
    return StallPolicy(after_s=after_s, interval_s=min(1.0, after_s / 4), most_s=max(300.0, after_s))


def scrape_policy(settings: Settings) -> ScrapePolicy:
    pool = settings.pool
    return ScrapePolicy(interval_s=pool.scrape_interval_s, timeout_s=pool.probe_timeout_s)


def relay_options(settings: Settings) -> RelayOptions:
    upstream = settings.upstream
    return RelayOptions(
        connect_timeout_s=upstream.connect_timeout_s,
        first_byte_timeout_s=upstream.first_byte_timeout_s,
        keep_idle_s=upstream.keepalive_s,
        max_idle=upstream.max_idle_per_endpoint,
        tls_server_name=upstream.tls_server_name,
        limits=Limits(
            idle_timeout_s=upstream.idle_timeout_s,
            distrusted_idle_s=min(upstream.unhealthy_idle_timeout_s, upstream.idle_timeout_s),
        ),
    )


def leg_settings(settings: Settings) -> LegSettings:
    retries, upstream, pd = settings.retries, settings.upstream, settings.pd
    return LegSettings(
        max_attempts=retries.max_attempts,
        prefill_attempts=pd.retries + 1,
        backoff_s=retries.backoff_ms / 1000,
        backoff_most_s=retries.backoff_max_ms / 1000,
        retry_statuses=frozenset(retries.on_status),
        first_byte_timeout_s=upstream.first_byte_timeout_s,
        prefill_timeout_s=pd.prefill_timeout_s,
        retry_within_s=retries.within_s,
        response_headers=settings.server.response_headers,
        inject_stream_usage=settings.usage.inject_stream_usage,
    )


def front_settings(settings: Settings) -> FrontSettings:
    server = settings.server
    return FrontSettings(
        max_body_bytes=server.max_body_bytes,
        forward_authorization=server.forward_authorization,
        trusted_headers=frozenset(name.encode("latin-1", "replace") for name in server.trusted_headers),
        trust_kv_transfer_params=server.trust_client_kv_transfer_params,
        trusted_peers=TrustedPeers(server.trusted_peers),
        strip_untrusted_priority=server.strip_untrusted_priority,
        tenant_salt=None if server.tenant_salt_secret is None else TenantSalt(_secret(server.tenant_salt_secret) or ""),
    )


def queues(settings: Settings) -> Queues:
    """What waits while no endpoint has room."""
    flow = settings.flow_control
    return Queues(
        QueueLimits(
            total=QueueSize(flow.max_requests, flow.max_bytes),
            each_class=QueueSize(flow.class_max_requests, flow.class_max_bytes),
            classes={
                known.priority: QueueSize(
                    known.max_requests or flow.class_max_requests, known.max_bytes or flow.class_max_bytes
                )
                for known in flow.classes
            },
            sheddable_share=flow.sheddable_share,
        ),
        quantum=float(flow.quantum_tokens),
        ordering=flow.ordering,
        weights=flow.tenant_weights,
    )


def objectives(settings: Settings) -> Objectives:
    """What requests are entitled to by their objective and priority."""
    flow = settings.flow_control
    return Objectives(
        {
            known.name: Objective(
                priority=known.priority,
                ttft_slo_s=None if known.ttft_slo_ms is None else known.ttft_slo_ms / 1000,
                max_wait_s=known.max_wait_s,
            )
            for known in flow.objectives
        },
        max_wait_s=flow.max_wait_s,
        class_wait_s={known.priority: known.max_wait_s for known in flow.classes if known.max_wait_s is not None},
    )


def detector(settings: Settings, watch: Watch) -> Detector:
    """When an endpoint counts as saturated."""
    flow = settings.flow_control
    if not flow.enabled:
        return Unlimited()
    concurrency = ConcurrencyDetector(
        watch,
        queue_depth=flow.queue_depth,
        max_requests=flow.max_requests_per_endpoint,
        max_tokens=flow.max_tokens_per_endpoint,
    )
    if flow.detector == "concurrency":
        return concurrency
    utilization = UtilizationDetector(
        watch, queue_depth=flow.queue_depth, kv_usage=flow.kv_usage, max_age_s=flow.max_metrics_age_s
    )
    return utilization if flow.detector == "utilization" else EitherDetector([utilization, concurrency])


def priorities(settings: Settings) -> list[int]:
    """Those that the configuration names."""
    flow = settings.flow_control
    return sorted({*(known.priority for known in flow.objectives), *(known.priority for known in flow.classes)})


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


def rate_sharing(settings: Settings, limits: KeyLimits, shared: Shared | None) -> RateSharing | None:
    """None where there is no Redis. Raises `ConfigError`."""
    if shared is None:
        return None
    board = shared.board
    return RateSharing(redis_link(settings), limits, namespace=settings.redis.namespace, routers=lambda: board.routers)


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


def scheduler(settings: Settings, failed: PluginFailed) -> Scheduler:
    """Raises `ConfigError`."""
    registry = builtin_registry()
    picker = _picker_config(settings, registry)
    chosen: SchedulingSettings = settings.scheduling if picker is None else picker.settings
    if settings.pd.enabled is False:
        chosen = chosen.model_copy(update={"decider": "never-disagg-pd-decider"})
    return build_scheduler(chosen, registry, failed)


def _picker_config(settings: Settings, registry: Registry) -> EpcResult | None:
    path = settings.scheduling.endpoint_picker_config
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"scheduling.endpoint_picker_config: {path} cannot be read ({error.strerror}): name a YAML file"
        ) from error
    return load_epc(text, registry)


def tokenization(
    settings: Settings, client: ControlClient, block_size: Callable[[], int], clock: Clock
) -> TokenizationService:
    """`block_size`: tokens per block of the index's keys."""
    chosen = settings.tokenization
    remote = RemoteTokenizer(EngineTokenize(client, _TOKENIZE_S), clock=clock) if chosen.remote else None
    return TokenizationService(
        Tokenizers(
            load_tokenizer,
            lambda root: load_tokenizer(root, offline=True),
            named=chosen.models,
            default=chosen.default,
        ),
        remote,
        limits=ServiceLimits(inline_max_bytes=chosen.inline_max_bytes, workers=chosen.workers, queue=chosen.queue),
        block_size_for=lambda _model, _candidates: block_size(),
        estimates=chosen.estimate,
    )


def indexing_settings(settings: Settings) -> IndexingSettings:
    """What an EndpointPickerConfig says of the index counts where the settings leave it open. Raises `ConfigError`."""
    index = settings.index
    picker = _picker_config(settings, builtin_registry())
    block_size = None if index.block_size == "auto" else index.block_size
    speculative_ttl_s = index.speculative_ttl_s
    if picker is not None:
        block_size = block_size or picker.hints.block_size
        if "speculative_ttl_s" not in index.model_fields_set:
            speculative_ttl_s = picker.hints.speculative_ttl_s or speculative_ttl_s
    return IndexingSettings(block_size=block_size, speculative_ttl_s=speculative_ttl_s)


def memory_index(settings: Settings, clock: Clock) -> MemoryIndex:
    index = settings.index
    return MemoryIndex(clock, max_blocks=index.max_blocks, history_ttl_s=index.approximate_ttl_s)


def request_log(settings: Settings) -> RequestLog | None:
    """The log of requests to be replayed, if one is asked for; not opened yet."""
    path = settings.log.requests
    return None if path is None else RequestLog(Path(path), wall=time.time)


@dataclass(frozen=True, slots=True)
class Shared:
    """What routers with one Redis share."""

    index: RedisIndex
    board: RedisBoard


def sharing(
    settings: Settings, memory: MemoryIndex, load: Callable[[], Load], note: Callable[[], bytes]
) -> Shared | None:
    """`memory`, this router's `load` and its `note` (of its queues), shared; None with the memory backend.

    Raises `ConfigError`.
    """
    if settings.index.backend != "redis":
        return None
    namespace, router = settings.redis.namespace, secrets.token_hex(8)
    link = redis_link(settings)
    index = RedisIndex(
        memory,
        lambda: RedisStore(redis_link(settings), namespace=namespace),
        router=router,
        dispatched=lambda endpoint, keys: board.dispatched(endpoint, keys),
        routers=lambda: board.routers,
        dispatch_ttl_s=settings.index.speculative_ttl_s,
    )
    board = RedisBoard(
        link,
        router=router,
        namespace=namespace,
        load=load,
        note=note,
        on_dispatched=index.heard,
        history_s=settings.index.approximate_ttl_s,
    )
    return Shared(index, board)


def redis_link(settings: Settings) -> RedisLink:
    """A connection of its own. Raises `ConfigError` for an unusable address."""
    redis = settings.redis
    if redis.url is None:
        raise ConfigError("redis.url: index.backend is redis, which needs a server: give redis.url or --redis URL")
    try:
        return RedisLink(redis.url.get_secret_value(), budget_s=redis.command_timeout_s, ca_file=redis.ca_file)
    except ValueError as error:
        raise ConfigError(f"redis.url: {error}") from None


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
