"""DnsDiscovery: a DNS name's answers as endpoints.

`A` records, or `AAAA` where there is no `A` (an engine with an address of either family must not become two
endpoints), take the configured port; `SRV` records bring their own, and only those of the lowest priority count
(RFC 2782). A resolver that fails changes nothing. A name that has no records any more is believed on the third
answer in a row: name servers say so for a moment while they restart, and believing it at once would empty the pool.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import dns.asyncresolver
import dns.exception
import dns.rdatatype
import dns.resolver
import msgspec

from router.errors import ConfigError
from router.observability.supervisor import Sleep
from router.pool.spec import EndpointSpec

log = logging.getLogger(__name__)

_EMPTY_ANSWERS_BELIEVED = 3


class DnsName(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, whom, and how often. Raises `ConfigError`."""

    name: str
    kind: Literal["a", "srv"] = "a"
    port: int | None = None
    """Engines' port; `a` needs it."""
    scheme: Literal["http", "https"] = "http"
    path: str = ""
    """Path prefix of the engines' URLs."""
    interval_s: float = 5.0
    """Longest pause between two questions; an answer with a shorter TTL is asked again after that, if not below
    `min_interval_s`."""
    min_interval_s: float = 1.0
    timeout_s: float = 4.0
    nameserver: tuple[str, int] | None = None
    """IP address and port of the server to ask; None: the system's."""

    def __post_init__(self) -> None:
        if self.kind == "a" and self.port is None:
            raise ConfigError(f"DNS name {self.name} has no port: add the engines' port, or use kind srv.")
        if self.nameserver is not None:
            try:
                ipaddress.ip_address(self.nameserver[0])
            except ValueError:
                raise ConfigError(
                    f"nameserver {self.nameserver[0]!r} of DNS name {self.name} is not an IP address: "
                    "write the server's address, names cannot be resolved without it."
                ) from None


class DnsDiscovery:
    """Implements `router.pool.discovery.Discovery`. `make` gives a found URL its role, key and labels."""

    def __init__(
        self,
        name: DnsName,
        make: Callable[[str], EndpointSpec],
        *,
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._name = name
        self._make = make
        self._sleep = sleep
        self._rng = rng or random.Random()
        self._resolver = _resolver(name)

    async def watch(self) -> AsyncIterator[Sequence[EndpointSpec]]:
        known: tuple[str, ...] | None = None
        empties = 0
        failing = False
        while True:
            try:
                urls, ttl_s = await self._resolve()
            except dns.exception.DNSException as error:
                if not failing:
                    log.warning("DNS name %s: %s; keeping what is known", self._name.name, type(error).__name__)
                failing = True
                await self._pause(self._name.interval_s)
                continue
            failing = False
            empties = empties + 1 if not urls else 0
            if urls != known and (urls or not known or empties >= _EMPTY_ANSWERS_BELIEVED):
                known = urls
                yield [spec for url in urls if (spec := self._spec(url)) is not None]
            await self._pause(ttl_s)

    async def _resolve(self) -> tuple[tuple[str, ...], float]:
        """URLs, sorted (answers are shuffled), and for how long they hold."""
        if self._name.kind == "srv":
            answer = await self._ask(dns.rdatatype.SRV)
            lowest = min((record.priority for record in answer or ()), default=0)
            found = {
                self._url(record.target.to_text(omit_final_dot=True), record.port)
                for record in answer or ()
                if record.priority == lowest
            }
            return tuple(sorted(found)), _ttl(answer, self._name.interval_s)
        answer = await self._ask(dns.rdatatype.A) or await self._ask(dns.rdatatype.AAAA)
        port = self._name.port or 0
        return tuple(sorted({self._url(record.address, port) for record in answer or ()})), _ttl(
            answer, self._name.interval_s
        )

    async def _ask(self, kind: dns.rdatatype.RdataType) -> dns.resolver.Answer | None:
        """None: there are no such records. Raises `DNSException` when nobody knows."""
        try:
            answer = await self._resolver.resolve(self._name.name, kind, raise_on_no_answer=False, search=True)
        except dns.resolver.NXDOMAIN:
            return None
        return answer if answer.rrset else None

    def _url(self, host: str, port: int) -> str:
        shown = f"[{host}]" if ":" in host else host
        return f"{self._name.scheme}://{shown}:{port}{self._name.path}"

    def _spec(self, url: str) -> EndpointSpec | None:
        try:
            return self._make(url)
        except ConfigError as error:
            log.warning("DNS name %s brought an endpoint that cannot be used: %s", self._name.name, error)
            return None

    async def _pause(self, seconds: float) -> None:
        pause = max(self._name.min_interval_s, min(self._name.interval_s, seconds))
        # Jitter keeps many routers from asking in step.
        await self._sleep(pause * self._rng.uniform(0.9, 1.1))


def _ttl(answer: dns.resolver.Answer | None, otherwise: float) -> float:
    return float(answer.rrset.ttl) if answer is not None and answer.rrset is not None else otherwise


def _resolver(name: DnsName) -> dns.asyncresolver.Resolver:
    try:
        resolver = dns.asyncresolver.Resolver(configure=name.nameserver is None)
    except dns.resolver.NoResolverConfiguration:
        raise ConfigError(
            f"DNS name {name.name}: this system has no resolver configuration, so set nameserver."
        ) from None
    if name.nameserver is not None:
        resolver.nameservers = [name.nameserver[0]]
        resolver.port = name.nameserver[1]
    resolver.lifetime = name.timeout_s
    return resolver
