"""Reads the settings tree: file < environment < flags, and every mistake as one sentence (`ConfigError`)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from router.core import Role
from router.errors import ConfigError
from router.settings.environment import read_environment
from router.settings.explain import named, sentence, unknown
from router.settings.keys import ApiKeySettings, read_key_file, unlisted
from router.settings.model import Settings
from router.settings.sources import Source, from_flags, read_yaml
from router.wire.hosts import is_loopback


def load(
    config: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings in force.

    `config`: a YAML file or None; `environ`: None for this process's; `flags`: dotted key to value
    (``{"server.port": 9000}``). Mappings merge key by key, a list replaces the whole list below it. The keys in
    ``server.api_keys_file`` are read into ``server.api_keys``, admin keys likewise. Raises `ConfigError`: one sentence
    with key, source and mend.
    """
    sources = [read_environment(os.environ if environ is None else environ), from_flags(flags or {})]
    if config is not None:
        sources.insert(0, read_yaml(config))
    merged: dict[str, Any] = {}
    for source in sources:
        merged = _merge(merged, source.values)
    settings = _validate(merged, sources)
    objectives = [objective.name for objective in settings.flow_control.objectives]
    for name in ("api_keys", "admin_keys"):
        path, own = getattr(settings.server, f"{name}_file"), getattr(settings.server, name)
        _check_objectives(name, own, objectives, merged, sources)
        if path is not None:
            keys = read_key_file(Path(path), f"server.{name}_file", others=own, objectives=objectives)
            merged = _merge(merged, {"server": {name: [*own, *keys]}})
            settings = _validate(merged, sources)
    _check_needs(settings)
    return settings


def dump(settings: Settings) -> dict[str, Any]:
    """The tree as plain values, secrets masked."""
    return settings.model_dump(mode="json")


def _validate(merged: dict[str, Any], sources: Sequence[Source]) -> Settings:
    # Looked for here, as pydantic-settings would take a section in any case of letters.
    for name in merged:
        if name not in Settings.model_fields:
            raise ConfigError(unknown((name,), sources))
    try:
        return Settings(**merged)
    except ValidationError as error:
        raise ConfigError(sentence(error, merged, sources)) from None


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _check_objectives(
    name: str,
    keys: Sequence[ApiKeySettings],
    objectives: Collection[str],
    merged: Mapping[str, Any],
    sources: Sequence[Source],
) -> None:
    """Keys may name only objectives that are configured. Raises `ConfigError`."""
    for number, key in enumerate(keys):
        if wrong := unlisted(key, objectives):
            written = merged["server"][name]
            # Of a key that was written twice one is left, and the numbers are others.
            each = (number,) if isinstance(written, list) and len(written) == len(keys) else ()
            raise ConfigError(f"{named(('server', name, *each), sources)} {wrong}")


def _check_needs(settings: Settings) -> None:
    """What one key needs of another. Raises `ConfigError`."""
    endpoints, dns = settings.endpoints, settings.discovery.dns
    starts_its_own = settings.capacity.planner and settings.capacity.actuator == "local"
    if not endpoints and not dns and not starts_its_own:
        raise ConfigError(
            "endpoints is empty and discovery finds none: name at least one engine, like http://127.0.0.1:8001"
        )
    roles = {endpoint.role for endpoint in endpoints} | {name.role for name in dns}
    if roles == {Role.PREFILL}:
        raise ConfigError(
            "endpoints has only role prefill, and nobody would decode: add one of role decode or both (--decode URL)"
        )
    if settings.pd.enabled is True and not roles & {Role.PREFILL, Role.BOTH}:
        raise ConfigError(
            "pd.enabled is true, but no endpoint has role prefill or both: add one (--prefill URL), or set it to auto"
        )
    server = settings.server
    if server.admin_port is not None and not server.admin_keys and not is_loopback(server.admin_host):
        raise ConfigError(
            f"server.admin_host is {server.admin_host}, which others reach, and server.admin_keys is empty: "
            "give a key (kvrouter hash-key), or set admin_host to 127.0.0.1"
        )
    upstream, redis = settings.upstream, settings.redis
    for key, certificate, names in (
        (server.tls_key_file, server.tls_cert_file, "server.tls_key_file server.tls_cert_file"),
        (server.tls_client_ca_file, server.tls_cert_file, "server.tls_client_ca_file server.tls_cert_file"),
        (upstream.client_key_file, upstream.client_cert_file, "upstream.client_key_file upstream.client_cert_file"),
        (redis.client_key_file, redis.client_cert_file, "redis.client_key_file redis.client_cert_file"),
    ):
        if key is not None and certificate is None:
            name, needs = names.split()
            raise ConfigError(f"{name} is set and {needs} is not: name the certificate too, or leave it out")
    if server.admin_port == server.port:
        raise ConfigError(
            "server.admin_port is server.port: give it a port of its own, or leave it out to have both on one"
        )
    if settings.index.backend == "redis" and redis.url is None:
        raise ConfigError(
            "index.backend is redis, but redis.url is not set: give one like redis://127.0.0.1:6379/0, "
            "or set index.backend to auto"
        )
    for what, values in (
        ("address", [endpoint.url for endpoint in endpoints]),
        ("name", [endpoint.name for endpoint in endpoints if endpoint.name]),
    ):
        value, times = Counter(values).most_common(1)[0] if values else ("", 0)
        if times > 1:
            raise ConfigError(f"endpoints names {what} {value} {times} times: keep one of them")
