"""TLS on both sides: contexts out of the files that the settings name, and taking over renewed certificates.

A renewed pair is tried on a context of its own first: one half of a pair that is just being replaced must not end up in
front of clients. Handshakes from then on use it; connections that stand go on.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from router.errors import ConfigError
from router.settings import Settings


class Certificates:
    """The two contexts of a router. Raises `ConfigError` for files that cannot be used."""

    def __init__(self, settings: Settings) -> None:
        server, upstream = settings.server, settings.upstream
        self.to_engines = _engine_context(settings)
        self.to_clients: ssl.SSLContext | None = None
        """None: clients speak without TLS."""
        self._renewals: list[Callable[[], None]] = []
        if server.tls_cert_file is not None:
            self.to_clients = context = _client_context(settings)
            self._keep(context, "server.tls_cert_file", server.tls_cert_file, server.tls_key_file)
        if upstream.client_cert_file is not None:
            self._keep(
                *(self.to_engines, "upstream.client_cert_file"),
                *(upstream.client_cert_file, upstream.client_key_file),
            )

    def renew(self) -> None:
        """Reads the files again. Raises `ConfigError`: the certificates in use stay."""
        for renewal in self._renewals:
            renewal()

    def _keep(self, context: ssl.SSLContext, setting: str, cert: str, key: str | None) -> None:
        def renewal() -> None:
            _load_pair(ssl.SSLContext(context.protocol), setting, cert, key)
            _load_pair(context, setting, cert, key)

        renewal()
        self._renewals.append(renewal)


def certificate_files(settings: Settings) -> tuple[Path, ...]:
    """Files whose new content is taken over while running."""
    server, upstream = settings.server, settings.upstream
    named = (server.tls_cert_file, server.tls_key_file, upstream.client_cert_file, upstream.client_key_file)
    return tuple(Path(path) for path in named if path is not None)


def check_redis_files(settings: Settings) -> None:
    """Raises `ConfigError` for files that no TLS connection to Redis could use."""
    redis = settings.redis
    if redis.ca_file is not None:
        _load_authorities(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "redis.ca_file", redis.ca_file)
    if redis.client_cert_file is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_pair(context, "redis.client_cert_file", redis.client_cert_file, redis.client_key_file)


def _client_context(settings: Settings) -> ssl.SSLContext:
    server = settings.server
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    if server.tls_client_ca_file is not None:
        _load_authorities(context, "server.tls_client_ca_file", server.tls_client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _engine_context(settings: Settings) -> ssl.SSLContext:
    upstream = settings.upstream
    if upstream.ca_file is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, "upstream.ca_file", upstream.ca_file)
    if not upstream.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_authorities(context: ssl.SSLContext, setting: str, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {path} cannot be read as PEM certificates ({error}): name a PEM file") from None


def _load_pair(context: ssl.SSLContext, setting: str, cert: str, key: str | None) -> None:
    try:
        # A password would be asked for on the terminal: none is given, and such a key is refused.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or "not PEM"
        where = cert if key is None else f"{cert} and {key}"
        raise ConfigError(
            f"{setting}: {where} cannot be used ({why}): name a PEM certificate chain and its private key without a "
            "password"
        ) from None
