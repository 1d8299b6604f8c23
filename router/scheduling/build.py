"""build_scheduler: settings and a registry -> `Scheduler`. PURE."""

from __future__ import annotations

from typing import TypeVar

from router.core import Leg
from router.errors import ConfigError
from router.scheduling.config import PluginSettings, ProfileSettings, SchedulingSettings
from router.scheduling.plugins import Decider, Filter, Picker, Scorer
from router.scheduling.profile import Named, PluginFailed, Profile, Weighted
from router.scheduling.registry import Registry
from router.scheduling.scheduler import Scheduler

P = TypeVar("P")

_METHODS = {Filter: "filter", Scorer: "score", Picker: "pick", Decider: "decide"}


def ignore_failure(_plugin: str, _leg: Leg, _error: Exception) -> None:
    """For callers who do not count failing plugins."""


def build_scheduler(
    settings: SchedulingSettings, registry: Registry, on_plugin_failed: PluginFailed = ignore_failure
) -> Scheduler:
    """Raises `ConfigError` naming the key, the plugin and the mend.

    `on_plugin_failed` is told of each plugin that is skipped because it raised; it must not raise.
    """
    instances = _Instances(settings, registry)
    profiles = settings.profiles
    decode = _profile(Leg.DECODE, profiles.decode, instances, on_plugin_failed)
    prefill = _profile(Leg.PREFILL, profiles.prefill, instances, on_plugin_failed)
    decider = instances.get(settings.decider, Decider, "scheduling.decider")  # type: ignore[type-abstract]
    return Scheduler(decode, prefill, Named(settings.decider, decider), on_plugin_failed)


def _profile(leg: Leg, settings: ProfileSettings, instances: _Instances, failed: PluginFailed) -> Profile:
    key = f"scheduling.profiles.{leg}"
    filters = [
        Named(name, instances.get(name, Filter, f"{key}.filters[{i}]"))  # type: ignore[type-abstract]
        for i, name in enumerate(settings.filters)
    ]
    scorers = [
        Weighted(
            scorer.plugin,
            instances.get(scorer.plugin, Scorer, f"{key}.scorers[{i}]"),  # type: ignore[type-abstract]
            scorer.weight,
        )
        for i, scorer in enumerate(settings.scorers)
    ]
    picker = instances.get(settings.picker, Picker, f"{key}.picker")  # type: ignore[type-abstract]
    return Profile(leg, filters, scorers, Named(settings.picker, picker), failed)


class _Instances:
    """Plugin instances by name: the configured ones, and on demand those whose name is a type."""

    def __init__(self, settings: SchedulingSettings, registry: Registry) -> None:
        self._registry = registry
        self._by_name: dict[str, object] = {}
        for i, plugin in enumerate(settings.plugins):
            self._add(f"scheduling.plugins[{i}]", plugin)

    def _add(self, key: str, plugin: PluginSettings) -> None:
        if plugin.key in self._by_name:
            raise ConfigError(
                f"{key}: the name {plugin.key!r} is taken by another plugin: give this one a name of its own"
            )
        self._by_name[plugin.key] = self._create(key, plugin)

    def _create(self, key: str, plugin: PluginSettings) -> object:
        try:
            return self._registry.create(plugin.type, plugin.key, plugin.parameters)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error

    def get(self, name: str, protocol: type[P], key: str) -> P:
        if name not in self._by_name:
            self._add(key, PluginSettings(type=name))
        plugin = self._by_name[name]
        if not isinstance(plugin, protocol):
            raise ConfigError(
                f"{key}: plugin {name!r} is not a {protocol.__name__.lower()} (it has no method "
                f"{_METHODS[protocol]!r}): name one that is"
            )
        return plugin
