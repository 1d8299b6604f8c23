"""Flags that several commands share, and the settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from router.errors import ConfigError
from router.settings.keys import DIGEST_PREFIX, digest, sendable

Urls = Annotated[
    list[str] | None,
    typer.Argument(metavar="URL", help="Engines that serve whole requests, like http://10.0.0.5:8000"),
]
Prefill = Annotated[
    list[str] | None, typer.Option(metavar="URL", help="An engine for the prefill leg; may be repeated.")
]
Decode = Annotated[list[str] | None, typer.Option(metavar="URL", help="An engine for the decode leg; may be repeated.")]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="KVROUTER_CONFIG", help="YAML file; every key is in docs/configuration.md"),
]
Redis = Annotated[str | None, typer.Option(metavar="URL", help="Share the KV index with other routers through Redis.")]
Tokenizer = Annotated[
    str | None, typer.Option(metavar="PATH_OR_ID", help="Tokenizer for every model: a folder or a hub id.")
]


def hashed(key: str) -> str:
    """As the settings take it. What is no key is left for them to refuse."""
    if not key.strip() or not sendable(key) or key.startswith(DIGEST_PREFIX):
        return key
    return f"{DIGEST_PREFIX}{digest(key)}"


def settings_flags(
    plain: Mapping[str, Any],
    urls: Sequence[str] | None,
    prefill: Sequence[str] | None,
    decode: Sequence[str] | None,
    redis: str | None,
) -> dict[str, Any]:
    """Dotted key to value of the flags that were given, as `router.settings.load` takes them."""
    flags = {key: value for key, value in plain.items() if value not in (None, [])}
    roles = (("both", urls), ("prefill", prefill), ("decode", decode))
    if endpoints := [{"url": url, "role": role} for role, given in roles for url in given or ()]:
        flags["endpoints"] = endpoints
    if redis is not None:
        flags |= {"redis.url": redis, "index.backend": "redis"}
    return flags


def split_targets(targets: Sequence[str], config: Path | None) -> tuple[list[str], Path | None]:
    """Addresses and the configuration file among positional arguments. Raises `ConfigError`."""
    urls = [target for target in targets if "://" in target]
    files = [target for target in targets if "://" not in target]
    if not files:
        return urls, config
    if len(files) > 1 or (config is not None and not urls):
        raise ConfigError(f"{files[-1]} is one configuration file too many: give one, and engines as http://host:port")
    if not Path(files[0]).suffix and not Path(files[0]).exists():
        raise ConfigError(f"{files[0]} is neither a file nor an address: write an engine like http://10.0.0.5:8000")
    return urls, Path(files[0])
