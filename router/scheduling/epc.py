"""load_epc: llm-d's EndpointPickerConfig -> `SchedulingSettings` and hints. PURE.

Accepted are ``llm-d.ai/v1alpha1`` (and ``v1``) and the earlier ``inference.networking.x-k8s.io/v1alpha1``. What we have
not is refused by name, with the mend; nothing is dropped in silence but what this router does by itself
(`router.scheduling.epc_types`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from router.errors import ConfigError
from router.plain_yaml import NotYaml, load
from router.scheduling.config import (
    PluginSettings,
    ProfileSettings,
    ProfilesSettings,
    SchedulingSettings,
    ScorerSettings,
)
from router.scheduling.epc_handlers import HANDLERS, Split, split
from router.scheduling.epc_producers import Hints, is_producer, producer_hints
from router.scheduling.epc_types import ALIASES, MENDS, OWN_WORK, own_parameters, producers_read
from router.scheduling.plugins import Decider, Filter, Picker, Scorer
from router.scheduling.registry import Registry

KIND = "EndpointPickerConfig"
API_VERSIONS = ("llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1")

_GATES = frozenset({"dataLayer", "prepareDataPlugins"})
"""What these switch on is always on here."""


_DEFAULT_BLEND: Mapping[str, float] = {
    "queue-scorer": 2.0,
    "kv-cache-utilization-scorer": 2.0,
    "prefix-cache-scorer": 3.0,
}
"""What llm-d's picker does when the configuration names nothing."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Plugin(_Section, frozen=True):
    type: str
    name: str | None = None
    parameters: dict[str, Any] | None = None


class _Ref(_Section, frozen=True):
    plugin_ref: str
    weight: float | None = None


class _Profile(_Section, frozen=True):
    name: str
    plugins: tuple[_Ref, ...] = ()


class _Source(_Section, frozen=True):
    plugin_ref: str
    extractors: tuple[_Ref, ...] = ()


class _DataLayer(_Section, frozen=True):
    inject_defaults: bool | None = None
    sources: tuple[_Source, ...] = ()


class _Parsers(_Section, frozen=True):
    parsers: tuple[_Ref, ...] = ()


class _SaturationDetector(_Section, frozen=True):
    """Without flow control it only sheds requests of negative priority, which do not exist here."""

    plugin_ref: str | None = None
    queue_depth_threshold: int | None = None
    kv_cache_util_threshold: float | None = None
    metrics_staleness_threshold: str | None = None


class _Document(_Section, frozen=True):
    api_version: str
    kind: str
    metadata: dict[str, Any] | None = None
    feature_gates: tuple[str, ...] = ()
    plugins: tuple[_Plugin, ...] = ()
    scheduling_profiles: tuple[_Profile, ...] = ()
    data_layer: _DataLayer | None = None
    flow_control: dict[str, Any] | None = None
    request_handler: _Parsers | None = None
    parser: _Ref | None = None
    saturation_detector: _SaturationDetector | None = None


class EpcResult(msgspec.Struct, frozen=True, kw_only=True):
    settings: SchedulingSettings
    hints: Hints


def is_epc(document: object) -> bool:
    """Whether a parsed YAML document says that it is one."""
    return isinstance(document, Mapping) and document.get("kind") == KIND


def load_epc(text: str | bytes, registry: Registry) -> EpcResult:
    """Raises `ConfigError` naming key, plugin and mend. `registry` knows the types; plugins are built to be checked."""
    document = _parse(text)
    loader = _Loader(document, registry)
    return EpcResult(settings=loader.settings(), hints=loader.hints)


def _parse(text: str | bytes) -> _Document:
    try:
        raw = load(text)
    except NotYaml as error:
        raise ConfigError(f"{KIND}: this is not YAML ({error}): mend the file") from None
    if not is_epc(raw):
        raise ConfigError(f"{KIND}: the document must say 'kind: {KIND}'")
    version = raw.get("apiVersion")
    if version not in API_VERSIONS:
        raise ConfigError(f"{KIND}: apiVersion {version!r} is not known: use {API_VERSIONS[0]}")
    try:
        document = msgspec.convert(raw, _Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{KIND}: {error}: mend it or remove it") from None
    _refuse(document)
    return document


def _refuse(document: _Document) -> None:
    if document.flow_control is not None:
        raise ConfigError(
            f"{KIND}: flowControl is not offered: remove it; to refuse requests (429) when engines are saturated use "
            "utilization-filter or active-request-filter in the profiles"
        )
    for gate in document.feature_gates:
        name, _, value = gate.partition("=")
        if name not in _GATES and value != "false":
            raise ConfigError(f"{KIND}: feature gate {name!r} is not offered: remove it from featureGates")


class _Loader:
    """One document on its way to settings."""

    def __init__(self, document: _Document, registry: Registry) -> None:
        self._document = document
        self._registry = registry
        self._types: dict[str, str] = {}
        self._own: dict[str, PluginSettings] = {}
        self._instances: dict[str, object] = {}
        self.hints = Hints()
        self._handler: tuple[str, Mapping[str, Any]] | None = None
        for plugin in document.plugins:
            self._add(plugin.name or plugin.type, plugin.type, plugin.parameters or {})
        if not document.scheduling_profiles and not document.plugins:
            for type_ in _DEFAULT_BLEND:
                self._add(type_, type_, {})
        self._check_references()

    def _add(self, name: str, type_: str, parameters: Mapping[str, Any]) -> None:
        if name in self._types:
            raise ConfigError(f"{KIND}: two plugins are named {name!r}: give one of them another name")
        self._types[name] = type_
        if type_ in OWN_WORK:
            return
        if type_ in HANDLERS:
            if self._handler is not None:
                raise ConfigError(f"{KIND}: {name!r} is a second profile handler: keep one")
            self._handler = (type_, parameters)
            return
        try:
            self._add_own(name, type_, parameters)
        except ConfigError as error:
            raise ConfigError(f"{KIND}: plugin {name!r} of type {type_!r}: {error}") from None

    def _add_own(self, name: str, type_: str, parameters: Mapping[str, Any]) -> None:
        if is_producer(type_) and type_ not in ALIASES:
            self._hint(producer_hints(type_, parameters))
            return
        ours = ALIASES.get(type_, type_)
        if ours not in self._registry.types():
            mend = MENDS.get(type_, "remove it, or install a package that offers it to kvrouter")
            raise ConfigError(f"this type is not offered; {mend}")
        own, hints = own_parameters(type_, parameters)
        self._hint(hints)
        self._keep(PluginSettings(type=ours, name=name, parameters=own))

    def _keep(self, plugin: PluginSettings) -> None:
        self._instances[plugin.key] = self._registry.create(plugin.type, plugin.key, plugin.parameters)
        self._own[plugin.key] = plugin

    def _hint(self, new: Hints) -> None:
        """Later words add to earlier ones; an exact index is not made approximate again."""
        given = {key: value for key, value in msgspec.structs.asdict(new).items() if value is not None}
        if self.hints.index == "exact":
            given.pop("index", None)
        self.hints = msgspec.structs.replace(self.hints, **given)

    def _check_references(self) -> None:
        document = self._document
        refs = [
            *(ref.plugin_ref for profile in document.scheduling_profiles for ref in profile.plugins),
            *(source.plugin_ref for source in (document.data_layer.sources if document.data_layer else ())),
            *(ref.plugin_ref for ref in (document.request_handler.parsers if document.request_handler else ())),
            *((document.parser.plugin_ref,) if document.parser else ()),
            *(name for plugin in document.plugins for name in producers_read(plugin.parameters or {})),
        ]
        for ref in refs:
            if ref not in self._types and not is_producer(ref):
                raise ConfigError(f"{KIND}: pluginRef {ref!r} names no plugin: declare it under plugins or remove it")

    def settings(self) -> SchedulingSettings:
        profiles = {profile.name: profile for profile in self._profiles()}
        type_, parameters = self._handler or ("", {})
        parts: Split = split(type_, parameters, tuple(profiles), self._types)
        for decider in parts.adds:
            if decider.key not in self._own:
                self._keep(decider)
        if parts.decider not in self._own or not isinstance(self._instances[parts.decider], Decider):
            raise ConfigError(f"{KIND}: {parts.decider!r} of the profile handler is not a decider: name one that is")
        decode = self._profile(profiles[parts.decode])
        prefill = decode if parts.prefill is None else self._profile(profiles[parts.prefill])
        return SchedulingSettings(
            plugins=tuple(self._own.values()),
            profiles=ProfilesSettings(decode=decode, prefill=prefill),
            decider=parts.decider,
        )

    def _profiles(self) -> tuple[_Profile, ...]:
        """Without any, llm-d makes one of all declared plugins, or of its default blend if there are none."""
        refs = tuple(
            _Ref(plugin_ref=name, weight=None if self._document.plugins else _DEFAULT_BLEND[name]) for name in self._own
        )
        return self._document.scheduling_profiles or (_Profile(name="default", plugins=refs),)

    def _profile(self, profile: _Profile) -> ProfileSettings:
        refs = [ref for ref in profile.plugins if ref.plugin_ref in self._own]
        pickers = [ref.plugin_ref for ref in refs if self._is(ref, Picker)]
        if len(pickers) > 1:
            raise ConfigError(f"{KIND}: profile {profile.name!r} has {len(pickers)} pickers: keep one")
        picker = pickers[0] if pickers else "max-score-picker"
        return ProfileSettings(
            filters=tuple(ref.plugin_ref for ref in refs if self._is(ref, Filter)),
            scorers=tuple(
                ScorerSettings(plugin=ref.plugin_ref, weight=_weight(profile, ref))
                for ref in refs
                if self._is(ref, Scorer)
            ),
            picker=picker,
        )

    def _is(self, ref: _Ref, protocol: Any) -> bool:
        return isinstance(self._instances[ref.plugin_ref], protocol)


def _weight(profile: _Profile, ref: _Ref) -> float:
    weight = 1.0 if ref.weight is None else ref.weight
    if not 0.0 <= weight < float("inf"):
        raise ConfigError(f"{KIND}: profile {profile.name!r}: the weight of {ref.plugin_ref!r} must be 0 or more")
    return weight
