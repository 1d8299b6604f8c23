"""Where settings come from: a YAML file and flags, as plain mappings that remember where each key stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from router.errors import ConfigError
from router.plain_yaml import PlainLoader

KeyPath = tuple[str | int, ...]

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
    ("redis", "client_cert_file"),
    ("redis", "client_key_file"),
    ("scheduling", "endpoint_picker_config"),
    ("capacity", "variants_file"),
    ("log", "requests"),
)


class Source(NamedTuple):
    """One layer of settings."""

    values: dict[str, Any]
    place: Callable[[KeyPath], str]
    """Where a key of this source stands, for a sentence: ``local.yaml line 3``, ``KVROUTER_SERVER__PORT``."""


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
        loader = PlainLoader(text)
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
