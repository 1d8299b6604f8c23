"""The settings tree: every key, its type, its default and what it means. PURE.

Frozen, and unknown keys are refused. The docstring under a field is its documentation: `docs/configuration.md` is
generated from these classes (`python -m router.settings.doc`). Names ending in ``_s`` are seconds, in ``_ms``
milliseconds, in ``_bytes`` bytes.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Strict
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from router.settings.capacity import CapacitySettings
from router.settings.engines import DiscoverySettings, EndpointSettings, PoolSettings, UpstreamSettings
from router.settings.flow import FlowControlSettings
from router.settings.observability import LogSettings, MetricsSettings, UsageSettings
from router.settings.routing import (
    IndexSettings,
    PdSettings,
    RedisSettings,
    RetrySettings,
    SchedulingTree,
    TokenizationSettings,
)
from router.settings.server import LimitsSettings, ServerSettings


def _bare_url(value: Any) -> Any:
    """An endpoint may be written as its address alone."""
    return {"url": value} if isinstance(value, str) else value


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

    @property
    def shares(self) -> bool:
        """Whether there is a Redis through which routers share what they know."""
        return self.index.backend == "redis" or (self.index.backend == "auto" and self.redis.url is not None)
