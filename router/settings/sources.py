"""Where settings come from: a YAML file and the environment, as plain mappings that remember where each key stands."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource, SettingsError

from router.errors import ConfigError
from router.settings.model import Settings

KeyPath = tuple[str | int, ...]

PREFIX = "KVROUTER_"
CONFIG_VARIABLE = "KVROUTER_CONFIG"
_NOT_SETTINGS = frozenset({CONFIG_VARIABLE, "KVROUTER_FIXTURES"})
"""Names of ours that carry no key: the configuration file's path, and the folder of recordings of the tests."""

_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$")
_SERVICE_LINK_PORT = re.compile(r"PORT$")
"""Kubernetes puts these into every pod of a namespace that has a Service named kvrouter or kvrouter-something."""

_PATH_KEYS = (
    ("server", "api_keys_file"),
    ("server", "admin_keys_file"),
    ("server", "tls_cert_file"),
    ("server", "tls_key_file"),
    ("server", "tls_client_ca_file"),
    ("upstream", "ca_file"),
    ("upstream", "client_cert_file"),
    ("upstream", "client_key_file"),
    ("redis", "ca_file"),
    ("scheduling", "endpoint_picker_config"),
)


class Source(NamedTuple):
    """One layer of settings."""

    values: dict[str, Any]
    place: Callable[[KeyPath], str]
    """Where a key of this source stands, for a sentence: ``local.yaml line 3``, ``KVROUTER_SERVER__PORT``."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice: PyYAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Source:
    """The file's mapping. Paths in it are taken from its own folder. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read ({error.strerror}): give the path of a readable YAML file"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"the configuration file {path} is not UTF-8 text: save it as UTF-8") from None
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            values = loader.construct_document(node) if node is not None else {}
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{path}{line} is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"{path} is not valid YAML: it holds something that no setting can be") from None
    if values is None:
        values = {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path} must be a mapping of sections like 'server:' and 'endpoints:' at its top")

    if values.get("kind") == "EndpointPickerConfig":
        raise ConfigError(
            f"{path} is an llm-d EndpointPickerConfig and no configuration of the router: "
            "name it in one under scheduling.endpoint_picker_config"
        )

    def place(keys: KeyPath) -> str:
        return f"{path} line {_line(node, keys)}"

    return Source(_anchored({k: v for k, v in values.items() if v is not None}, path.parent), place)


def read_environment(environ: Mapping[str, str]) -> Source:
    """The ``KVROUTER_...`` variables. Raises `ConfigError` for a name of that prefix that is no key of the tree."""
    ours = {
        name: value
        for name, value in environ.items()
        if name.upper().startswith(PREFIX) and not _is_foreign(name.upper(), value)
    }
    for name in ours:
        section = name[len(PREFIX) :].lower().split("__")[0]
        if section not in Settings.model_fields:
            raise ConfigError(f"{name} (environment) is not a setting: {_near(name.upper())}")
    source = _Environment(Settings)
    source.env_vars = {
        name.lower(): None if value.lower() == "null" else value for name, value in ours.items() if value != ""
    }
    try:
        values = source()
    except SettingsError as error:
        key = str(error).split('"')[1] if '"' in str(error) else "one of them"
        names = [name for name in ours if name.upper().startswith(f"{PREFIX}{key.upper()}")]
        name = names[0] if names else f"{PREFIX}{key.upper()}"
        raise ConfigError(
            f"{name} (environment) is not valid JSON: write it as JSON or as a comma-separated list"
        ) from None

    def place(keys: KeyPath) -> str:
        words = [str(key).upper() for key in keys]
        for length in range(len(words), 0, -1):
            name = PREFIX + "__".join(words[:length])
            for ours_name in ours:
                if ours_name.upper() == name:
                    return f"environment variable {ours_name}"
        return "environment"

    return Source(values, place)


def from_flags(flags: Mapping[str, Any]) -> Source:
    """Dotted key to value, as given on the command line."""
    values: dict[str, Any] = {}
    for dotted, value in flags.items():
        *sections, last = dotted.split(".")
        branch = values
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return Source(values, lambda keys: "command line")


class _Environment(EnvSettingsSource):
    """A list may be written with commas instead of as JSON."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith(("[", "{")):
            annotation = str(field.annotation) if field is not None else ""
            if "tuple[" in annotation.lower():
                parts = [part.strip() for part in value.split(",") if part.strip()]
                return [int(part) if "[int" in annotation and part.isdecimal() else part for part in parts]
            raise ValueError("neither JSON nor a list")
        return super().decode_complex_value(field_name, field, value)


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


def _line(node: yaml.Node | None, keys: KeyPath) -> int:
    """The 1-based line of a key, or of the deepest part of it that the document holds."""
    line = node.start_mark.line if node is not None else 0
    for key in keys:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
            node = node.value[key]
            line = node.start_mark.line
        else:
            break
    return line + 1


def _anchored(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Relative paths of a file's own keys, made relative to the file. A hub id is no path: only ./ and ../ count."""
    for section, key in _PATH_KEYS:
        branch = values.get(section)
        if isinstance(branch, dict) and isinstance(branch.get(key), str):
            branch[key] = os.fspath(folder / branch[key])
    tokenization = values.get("tokenization")
    if isinstance(tokenization, dict):
        _anchor_dotted(tokenization, "default", folder)
        models = tokenization.get("models")
        if isinstance(models, dict):
            for name in models:
                _anchor_dotted(models, name, folder)
    return values


def _anchor_dotted(branch: dict[str, Any], key: str, folder: Path) -> None:
    value = branch.get(key)
    if isinstance(value, str) and value.startswith(("./", "../")):
        branch[key] = os.fspath(folder / value)
