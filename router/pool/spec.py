"""EndpointSpec: one upstream as configured or discovered, and the names it gets. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

import msgspec

from router.core import Role
from router.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/\-]{0,127}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


class KvEventsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Where an upstream publishes its KV events, for engines that do not say so at ``/kv_event_sources``.

    With several ranks this is the first rank's source: the ports of the others follow one by one, as vLLM counts them.
    """

    endpoint: str
    """``tcp://host:port``; ``*`` as host stands for the upstream's own host."""
    replay_endpoint: str | None = None
    topic: str = ""
    """Prefix of the topics to subscribe to; empty takes all."""

    def __post_init__(self) -> None:
        for key, value in (("endpoint", self.endpoint), ("replay_endpoint", self.replay_endpoint)):
            if value is not None and not re.fullmatch(r"tcp://(\*|\[[^\]]+\]|[^:/\[\]]+):\d{1,5}|ipc://.+", value):
                raise ConfigError(
                    f"kv_events.{key} {value!r} is not a ZMQ address: write tcp://HOST:PORT (or tcp://*:PORT)."
                )


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One upstream: an engine's address with what is known about it beforehand. It becomes one endpoint, or one for
    each of its data-parallel ranks. Raises `ConfigError` when it cannot be used."""

    url: str
    """``http(s)://host[:port][/prefix]``."""
    role: Role = Role.BOTH
    name: str | None = None
    """Stands in the id's place (default: ``host:port[/prefix]``)."""
    api_key: str | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    models: tuple[str, ...] = ()
    """Names to serve under instead of what ``/v1/models`` lists."""
    data_parallel_size: int | None = None
    """Ranks behind this address until the engine itself says how many."""
    kv_events: KvEventsSpec | None = None
    """None: asked from the engine (``/kv_event_sources``)."""
    publishes_kv_events: bool = True
    """False: it is not subscribed to, whatever it or `kv_events` says."""
    health_path: str = "/health"

    def __post_init__(self) -> None:
        parts = _checked_url(self.url)
        msgspec.structs.force_setattr(self, "url", parts.geturl().rstrip("/"))
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"endpoint name {self.name!r} cannot be used: write 1 to 128 letters, digits or any of . _ : / -."
            )
        if self.data_parallel_size is not None and self.data_parallel_size < 1:
            raise ConfigError(
                f"data_parallel_size of {self.id} is {self.data_parallel_size}: write the number of ranks, 1 or more."
            )
        if not self.health_path.startswith("/"):
            raise ConfigError(f"health_path {self.health_path!r} of {self.id} must begin with a slash.")

    @property
    def id(self) -> str:
        """Names the upstream, and its endpoint where it has one rank."""
        if self.name is not None:
            return self.name
        parts = urlsplit(self.url)
        return f"{_bracketed(self.host)}:{parts.port or _DEFAULT_PORTS[parts.scheme]}{parts.path}"

    @property
    def host(self) -> str:
        """Host without brackets."""
        return urlsplit(self.url).hostname or ""

    def __repr__(self) -> str:
        return f"EndpointSpec({self.id}, {self.role.value})"


def _checked_url(url: str) -> SplitResult:
    shape = "write http(s)://HOST[:PORT][/PREFIX]."
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"endpoint URL {_shown(url)!r} has a bad host or port: {shape}") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ConfigError(f"endpoint URL {_shown(url)!r} does not begin with http:// or https://: {shape}")
    if "@" in parts.netloc:
        raise ConfigError(f"endpoint URL {_shown(url)!r} carries credentials: put the key into api_key instead.")
    if not parts.hostname:
        raise ConfigError(f"endpoint URL {_shown(url)!r} names no host: {shape}")
    if parts.query or parts.fragment or "?" in url or "#" in url:
        raise ConfigError(f"endpoint URL {_shown(url)!r} has a query or fragment: {shape}")
    if port == 0 or re.search(r"[\s\x00-\x1f\x7f]", url):
        raise ConfigError(f"endpoint URL {_shown(url)!r} has a bad host or port: {shape}")
    return parts._replace(netloc=parts.netloc.lower())


def _shown(url: str) -> str:
    """The URL without what may be a secret in it."""
    return re.sub(r"//.*@", "//***@", re.split(r"[?#]", url, maxsplit=1)[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
