"""The ``KVROUTER_...`` variables as a source of settings. They are text, and read as the key asks: only here is text a
number or a truth value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

from router.errors import ConfigError
from router.settings.model import Settings
from router.settings.sources import KeyPath, Source

PREFIX = "KVROUTER_"
CONFIG_VARIABLE = "KVROUTER_CONFIG"
_NOT_SETTINGS = frozenset({CONFIG_VARIABLE, "KVROUTER_FIXTURES"})
"""Names of ours that carry no key: the configuration file's path, and the folder of recordings of the tests."""

_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_SERVICE_LINK_PORT = re.compile(r"PORT$")
"""Kubernetes puts these into every pod of a namespace that has a Service named kvrouter or kvrouter-something."""

_WHOLE = re.compile(r"[-+]?[0-9]+")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf|nan")


def read_environment(environ: Mapping[str, str]) -> Source:
    """Raises `ConfigError` for a name of the prefix that is no key of the tree, and for what is no JSON."""
    ours = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(PREFIX) and not _is_foreign(name.upper(), value)
    }
    fields = {name: _field(name) for name in ours}
    source = _Environment(Settings)
    source.env_vars = {
        name.lower(): None if value.lower() == "null" else value for name, value in ours.items() if value != ""
    }
    try:
        values = source()
    except SettingsError as error:
        raise _no_json(ours, error) from None
    for name, field in fields.items():
        if field is not None and ours[name] not in ("", "null"):
            _put_number(values, _keys_of(name), ours[name].strip(), _leaves(field.annotation))

    def place(keys: KeyPath) -> str:
        words = [str(key).upper() for key in keys]
        for length in range(len(words), 0, -1):
            name = PREFIX + "__".join(words[:length])
            for ours_name in ours:
                if ours_name.upper() == name:
                    return f"environment variable {ours_name}"
        return "environment"

    return Source(values, place)


class _StandsTwice(ValueError):
    """A key of a JSON object."""


class _Environment(EnvSettingsSource):
    """A list may be written with commas instead of as JSON; a key stands once in a mapping."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
            annotation = str(field.annotation) if field is not None else ""
            if "tuple[" in annotation.lower():
                parts = [part.strip() for part in value.split(",") if part.strip()]
                return [int(part) if "[int" in annotation and part.isdecimal() else part for part in parts]
            raise ValueError("neither JSON nor a list")
        return json.loads(value, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _StandsTwice(next(name for name in names if names.count(name) > 1))
    return found


def _no_json(ours: Mapping[str, str], error: SettingsError) -> ConfigError:
    key = str(error).split('"')[1] if '"' in str(error) else "one of them"
    named = [name for name in ours if name.upper().startswith(f"{PREFIX}{key.upper()}")]
    name = named[0] if named else f"{PREFIX}{key.upper()}"
    if isinstance(error.__cause__, _StandsTwice):
        return ConfigError(
            f"{name} (environment) holds a mapping with the key {error.__cause__} twice: keep one of them"
        )
    return ConfigError(f"{name} (environment) is not valid JSON: write it as JSON or as a comma-separated list")


def _keys_of(name: str) -> list[str]:
    return name[len(PREFIX) :].lower().split("__")


def _field(name: str) -> FieldInfo | None:
    """The field that a variable sets; None where it sets a word of a free mapping. Raises `ConfigError` for none."""
    model: type[BaseModel] | None = Settings
    field: FieldInfo | None = None
    above = PREFIX
    for key in _keys_of(name):
        if model is None:
            assert field is not None
            if get_origin(field.annotation) is dict:
                return None
            raise ConfigError(f"{name} (environment) is not a setting: {above} is set whole, by one variable")
        field = model.model_fields.get(key)
        if field is None:
            raise ConfigError(f"{name} (environment) is not a setting: {_near(name.upper())}")
        above += key.upper() if above == PREFIX else f"__{key.upper()}"
        annotation = field.annotation
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return field


def _leaves(annotation: Any) -> set[type]:
    """The plain types that an annotation allows, none of them inside a list or a mapping."""
    if isinstance(annotation, type):
        return {annotation}
    if get_origin(annotation) in (tuple, list, dict):
        return set()
    return {leaf for part in get_args(annotation) for leaf in _leaves(part)}


def _put_number(values: dict[str, Any], keys: Sequence[str], text: str, kinds: set[type]) -> None:
    """Where a number is asked for, what reads like one and nothing else: ``true`` is none, and 2.0 no whole one."""
    if bool in kinds or not kinds & {int, float}:
        return
    branch = values
    for key in keys[:-1]:
        branch = branch[key]
        if not isinstance(branch, dict):
            # The section was set as a whole to something that the validation will refuse.
            return
    if _WHOLE.fullmatch(text):
        branch[keys[-1]] = int(text)
    elif float in kinds and _NUMBER.fullmatch(text.lower()):
        branch[keys[-1]] = float(text)
    else:
        branch[keys[-1]] = text


def environment_names() -> list[str]:
    """Every variable that sets one key or one section."""
    return [f"{PREFIX}{'__'.join(keys).upper()}" for keys in _keys(Settings, ())]


def _keys(model: type[BaseModel], above: tuple[str, ...]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, field in model.model_fields.items():
        found.append((*above, name))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += _keys(field.annotation, (*above, name))
    return found


def _near(name: str) -> str:
    # Compared without the prefix, which would make everything look alike.
    close = get_close_matches(name.removeprefix(PREFIX), [key.removeprefix(PREFIX) for key in environment_names()], n=1)
    return f"did you mean {PREFIX}{close[0]}?" if close else "unset it, or name a key like KVROUTER_SERVER__PORT"


def _is_foreign(name: str, value: str) -> bool:
    if name in _NOT_SETTINGS or _SERVICE_LINK.search(name):
        return True
    return bool(_SERVICE_LINK_PORT.search(name)) and value.startswith(("tcp://", "udp://", "sctp://"))
