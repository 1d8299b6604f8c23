"""Profile handlers of llm-d's EndpointPickerConfig: which profile is which leg, and which decider decides. PURE."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Literal, TypeVar

import msgspec

from router.errors import ConfigError
from router.scheduling.config import PluginSettings

_NEVER = PluginSettings(type="never-disagg-pd-decider")
_ALWAYS = PluginSettings(type="always-disagg-pd-decider")
_BY_PREFIX = "prefix-based-pd-decider"

_CHARACTERS_PER_TOKEN = 4
"""The old pd-profile-handler's threshold counts characters of the prompt; llm-d estimates tokens by this figure."""

P = TypeVar("P")


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the profile of each leg and of the decider; `prefill` None: one profile for everything."""

    decode: str
    prefill: str | None
    decider: str
    adds: tuple[PluginSettings, ...] = ()
    """Deciders that the handler implies."""


class _Parameters(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Single(_Parameters, frozen=True):
    pass


class _DataParallel(_Parameters, frozen=True):
    """Ranks are endpoints of their own here, so there is no port to rewrite."""

    primary_port: int | None = None
    target_port: int | None = None


class _Legs(_Parameters, frozen=True):
    decode: str = "decode"
    prefill: str = "prefill"
    encode: str | None = None


class _Deciders(_Parameters, frozen=True):
    prefill: str | None = None
    encode: None = None


class _Disagg(_Parameters, frozen=True):
    stage_order: Literal["decode-first"] = "decode-first"
    profiles: _Legs = _Legs()
    deciders: _Deciders = _Deciders()
    # Earlier spellings.
    decider_plugin_name: str | None = None
    decode_profile: str | None = None
    prefill_profile: str | None = None
    primary_port: int | None = None
    prefix_match_info_producer_name: str | None = None


class _Pd(_Parameters, frozen=True):
    decode_profile: str = "decode"
    prefill_profile: str = "prefill"
    decider_plugin_name: str | None = None
    threshold: float | None = None
    """Uncached characters of the prompt from which to disaggregate; 0 always."""
    hash_block_size: int | None = None
    primary_port: int | None = None
    prefix_plugin_type: str | None = None
    prefix_plugin_name: str | None = None
    prefix_match_info_producer_name: str | None = None


def split(type_: str, parameters: Mapping[str, Any], profiles: Sequence[str], declared: Mapping[str, str]) -> Split:
    """`type_` is "" when no handler is declared; `declared`: plugin name -> type. Raises `ConfigError`."""
    return HANDLERS[type_ or "single-profile-handler"](parameters, profiles, declared)


def _single(parameters: Mapping[str, Any], profiles: Sequence[str], _declared: Mapping[str, str]) -> Split:
    _convert("single-profile-handler", parameters, _Single)
    return _only(profiles)


def _data_parallel(parameters: Mapping[str, Any], profiles: Sequence[str], _declared: Mapping[str, str]) -> Split:
    _convert("data-parallel-profile-handler", parameters, _DataParallel)
    return _only(profiles)


def _only(profiles: Sequence[str]) -> Split:
    if len(profiles) != 1:
        raise ConfigError(
            f"EndpointPickerConfig: there are {len(profiles)} profiles ({', '.join(profiles)}) and no handler that "
            "chooses between them: declare disagg-profile-handler, or keep one profile"
        )
    return Split(decode=profiles[0], prefill=None, decider=_NEVER.key, adds=(_NEVER,))


def _disagg(parameters: Mapping[str, Any], profiles: Sequence[str], declared: Mapping[str, str]) -> Split:
    given = _convert("disagg-profile-handler", parameters, _Disagg)
    decode = _known(given.decode_profile or given.profiles.decode, profiles)
    decider = given.deciders.prefill or given.decider_plugin_name
    if decider is None:
        return Split(decode=decode, prefill=None, decider=_NEVER.key, adds=(_NEVER,))
    prefill = _known(given.prefill_profile or given.profiles.prefill, profiles)
    return Split(decode=decode, prefill=prefill, decider=_declared_decider(decider, declared))


def _pd(parameters: Mapping[str, Any], profiles: Sequence[str], declared: Mapping[str, str]) -> Split:
    given = _convert("pd-profile-handler", parameters, _Pd)
    decode, prefill = _known(given.decode_profile, profiles), _known(given.prefill_profile, profiles)
    name = given.decider_plugin_name or (_BY_PREFIX if _BY_PREFIX in declared else None)
    if name is not None:
        return Split(decode=decode, prefill=prefill, decider=_declared_decider(name, declared))
    if not given.threshold:
        return Split(decode=decode, prefill=prefill, decider=_ALWAYS.key, adds=(_ALWAYS,))
    tokens = ceil(given.threshold / _CHARACTERS_PER_TOKEN)
    decider = PluginSettings(type=_BY_PREFIX, parameters={"nonCachedTokens": tokens})
    return Split(decode=decode, prefill=prefill, decider=decider.key, adds=(decider,))


def _known(profile: str, profiles: Sequence[str]) -> str:
    if profile not in profiles:
        raise ConfigError(
            f"EndpointPickerConfig: the profile handler wants a profile named {profile!r}, but there is only "
            f"{', '.join(profiles)}: add it to schedulingProfiles or name another one in the handler's parameters"
        )
    return profile


def _declared_decider(name: str, declared: Mapping[str, str]) -> str:
    if name not in declared:
        raise ConfigError(f"EndpointPickerConfig: the profile handler's decider {name!r} is not declared under plugins")
    return name


def _convert(type_: str, parameters: Mapping[str, Any], into: type[P]) -> P:
    try:
        return msgspec.convert(dict(parameters), into)
    except msgspec.ValidationError as error:
        raise ConfigError(f"EndpointPickerConfig: {type_}: {error}: mend it or remove it") from None


Handler = Callable[[Mapping[str, Any], Sequence[str], Mapping[str, str]], Split]

HANDLERS: Mapping[str, Handler] = {
    "data-parallel-profile-handler": _data_parallel,
    "disagg-profile-handler": _disagg,
    "pd-profile-handler": _pd,
    "single-profile-handler": _single,
}
