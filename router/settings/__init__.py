"""One frozen settings tree: YAML file < environment (``KVROUTER_...``) < flags; unknown keys are refused.

`model` is the tree, `load` reads it and turns every mistake into one `ConfigError` sentence, `doc` writes
`docs/configuration.md`.
"""

from router.settings.capacity import CapacitySettings
from router.settings.flow import FlowControlSettings
from router.settings.keys import ApiKeySettings, RateSettings
from router.settings.load import dump, load
from router.settings.model import (
    DiscoverySettings,
    DnsSettings,
    EndpointSettings,
    IndexSettings,
    KvEventsSettings,
    LogSettings,
    MetricsSettings,
    PdSettings,
    PoolSettings,
    RedisSettings,
    RetrySettings,
    SchedulingTree,
    ServerSettings,
    Settings,
    TokenizationSettings,
    UpstreamSettings,
    UsageSettings,
    engine_url,
)

__all__ = [
    "ApiKeySettings",
    "CapacitySettings",
    "DiscoverySettings",
    "DnsSettings",
    "EndpointSettings",
    "FlowControlSettings",
    "IndexSettings",
    "KvEventsSettings",
    "LogSettings",
    "MetricsSettings",
    "PdSettings",
    "PoolSettings",
    "RateSettings",
    "RedisSettings",
    "RetrySettings",
    "SchedulingTree",
    "ServerSettings",
    "Settings",
    "TokenizationSettings",
    "UpstreamSettings",
    "UsageSettings",
    "dump",
    "engine_url",
    "load",
]
