"""One frozen settings tree: YAML file < environment (``KVROUTER_...``) < flags; unknown keys are refused.

`model` is the tree of the sections in `server`, `engines`, `routing`, `flow`, `keys`, `capacity` and `observability`;
`load` reads it and turns every mistake into one `ConfigError` sentence, `doc` writes `docs/configuration.md`.
"""

from router.settings.capacity import CapacitySettings
from router.settings.engines import (
    DiscoverySettings,
    DnsSettings,
    EndpointSettings,
    KvEventsSettings,
    PoolSettings,
    UpstreamSettings,
)
from router.settings.flow import FlowControlSettings
from router.settings.keys import ApiKeySettings, RateSettings
from router.settings.load import dump, load
from router.settings.model import Settings
from router.settings.observability import LogSettings, MetricsSettings, UsageSettings
from router.settings.routing import (
    IndexSettings,
    PdSettings,
    RedisSettings,
    RetrySettings,
    SchedulingTree,
    TokenizationSettings,
)
from router.settings.server import ServerSettings
from router.settings.words import engine_url

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
