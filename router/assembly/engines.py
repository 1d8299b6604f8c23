"""What the parts that watch and reach engines are given."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from router.legs import LegSettings
from router.pool.discovery import Discovery
from router.pool.dns_discovery import DnsDiscovery, DnsName
from router.pool.health import HealthPolicy
from router.pool.prober import ProbePolicy
from router.pool.scraper import ScrapePolicy
from router.pool.spec import EndpointSpec, KvEventsSpec
from router.pool.stall import StallPolicy
from router.settings import DnsSettings, EndpointSettings, KvEventsSettings, Settings
from router.settings.words import revealed
from router.upstream.connection import Limits
from router.upstream.relay import RelayOptions


def endpoint_specs(settings: Settings) -> list[EndpointSpec]:
    """The configured endpoints. Raises `ConfigError`."""
    return [_endpoint_spec(endpoint, settings) for endpoint in settings.endpoints]


def _endpoint_spec(endpoint: EndpointSettings, settings: Settings) -> EndpointSpec:
    events = endpoint.kv_events
    return EndpointSpec(
        url=endpoint.url,
        role=endpoint.role,
        name=endpoint.name,
        api_key=revealed(endpoint.api_key or settings.upstream.api_key),
        labels=dict(endpoint.labels),
        models=endpoint.models,
        data_parallel_size=endpoint.data_parallel_size,
        kv_events=_events_spec(events) if isinstance(events, KvEventsSettings) else None,
        publishes_kv_events=events is not False,
        health_path=endpoint.health_path,
    )


def _events_spec(events: KvEventsSettings) -> KvEventsSpec:
    return KvEventsSpec(endpoint=events.endpoint, replay_endpoint=events.replay_endpoint, topic=events.topic)


def discoveries(settings: Settings) -> Mapping[str, Discovery]:
    """DNS names by what makes each another: a changed one is followed anew."""
    return {f"dns {name.model_dump_json()}": _dns(name, settings) for name in settings.discovery.dns}


def _dns(name: DnsSettings, settings: Settings) -> DnsDiscovery:
    api_key = revealed(settings.upstream.api_key)
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
        continue_streams=retries.continue_streams,
    )
