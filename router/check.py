"""`kvrouter check`: asks each engine what the router would have to rely on, and says what is wrong with the answers.

Knows engines by plain HTTP and by what `router.pool` reads from them; changes nothing anywhere.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import msgspec

from kvindex.redis_store import RedisStore, closing
from kvindex.redis_trouble import StoreUnavailable
from router.assembly.engines import discoveries, endpoint_specs
from router.assembly.shared import redis_link
from router.certificates import Certificates
from router.check_calls import Answer, Calls, unreachable
from router.core import ModelCard, Role
from router.errors import ConfigError
from router.pool.facts import (
    FactsError,
    KvEventSource,
    configured_source,
    read_event_sources,
    read_models,
    read_version,
)
from router.pool.reading import PageReading, read_page
from router.pool.spec import EndpointSpec
from router.preflight import preflight
from router.settings import DiscoverySettings, DnsSettings, Settings
from router.tokenization.errors import NotRenderable
from router.tokenization.loader import load_tokenizer
from router.tokenization.local import LocalTokenizer

PROBE_CHAT: Mapping[str, Any] = {
    "messages": [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Name three rivers,\n\n  and their lengths in km: 1234.5?"},
        {"role": "assistant", "content": "Nile, Amazon, Yangtze."},
        {"role": "user", "content": "Größer als 5 000 km? \N{RIGHTWARDS ARROW} ja/nein"},
    ],
    "add_generation_prompt": True,
}
"""Several turns, runs of blanks, digits and characters beyond ASCII: what tokenizers and templates differ in."""


_RESOLVE_S = 5.0


class EngineReport(msgspec.Struct, kw_only=True):
    """One row of the table. Empty: not told, or not asked."""

    id: str
    role: Role
    health: str = ""
    version: str = ""
    models: Mapping[str, ModelCard] = msgspec.field(default_factory=dict)
    block_size: int | None = None
    num_blocks: int | None = None
    events: str = ""
    tokens: str = ""
    troubles: list[str] = msgspec.field(default_factory=list)
    """Sentences; each keeps the router from doing its work with this engine."""
    notes: list[str] = msgspec.field(default_factory=list)
    """Sentences; the router works, but with less."""


class Report(NamedTuple):
    engines: Sequence[EngineReport]
    troubles: Sequence[str] = ()
    """About the engines together."""
    notes: Sequence[str] = ()

    @property
    def good(self) -> bool:
        return not self.troubles and not any(engine.troubles for engine in self.engines)


def _named(server: str | None) -> Callable[[httpx.Request], Awaitable[None]]:
    """Asks TLS servers by that name, as the relay does."""

    async def name(request: httpx.Request) -> None:
        if server is not None:
            request.extensions["sni_hostname"] = server

    return name


async def check(settings: Settings, transport: httpx.AsyncBaseTransport | None = None) -> Report:
    """Probes every endpoint of the configuration at once, those that DNS names now included.

    `transport`: how to reach engines; None is the network. Raises `ConfigError` for what cannot even be tried.
    """
    await asyncio.to_thread(preflight, settings)
    timeout = httpx.Timeout(settings.pool.probe_timeout_s, connect=settings.upstream.connect_timeout_s)
    tokenizers = Tokenizers(settings)
    verify = Certificates(settings).to_engines
    resolved = await asyncio.gather(*(_resolve(name, settings) for name in settings.discovery.dns))
    specs = {spec.id: spec for specs, _ in resolved for spec in specs} | {
        spec.id: spec for spec in endpoint_specs(settings)
    }
    async with httpx.AsyncClient(verify=verify, timeout=timeout, trust_env=False, transport=transport) as client:
        client.event_hooks = {"request": [_named(settings.upstream.tls_server_name)]}
        probes = [Probe(client, settings, spec, tokenizers).run() for spec in specs.values()]
        engines = await asyncio.gather(*probes)
    unresolved = [trouble for _, trouble in resolved if trouble]
    redis_note, redis_trouble = await _redis(settings)
    troubles = [*unresolved, *redis_trouble, *without_decoder(engines)]
    return Report(engines, troubles, [*redis_note, *mixed_blocks(engines)])


async def _redis(settings: Settings) -> tuple[list[str], list[str]]:
    """(notes, troubles) about the shared Redis, if the configuration has one. Raises `ConfigError`."""
    if not settings.shares:
        return [], []
    async with closing(RedisStore(redis_link(settings), namespace=settings.redis.namespace)) as store:
        started = time.monotonic()
        try:
            server = await store.ping()
        except StoreUnavailable as unavailable:
            return [], [f"redis.url cannot be used, and until it can routers do not share: {unavailable}"]
    if server.too_old:
        return [], [f"redis.url: {server} is too old: take Redis 7, Valkey 8 or newer ones"]
    return [f"Redis: {server} takes and gives in {(time.monotonic() - started) * 1000:.0f} ms"], []


async def _resolve(name: DnsSettings, settings: Settings) -> tuple[Sequence[EndpointSpec], str]:
    """What a DNS name stands for now, and the trouble with it."""
    alone = settings.model_copy(update={"discovery": DiscoverySettings(dns=(name,))})
    (discovery,) = discoveries(alone).values()
    watch = discovery.watch()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            specs: Sequence[EndpointSpec] = await anext(aiter(watch))
    except TimeoutError:
        return (), f"discovery.dns: nobody answers for {name.name}: correct it, or its nameserver"
    finally:
        if isinstance(watch, AsyncGenerator):
            await watch.aclose()
    return specs, "" if specs else f"discovery.dns: {name.name} has no records: start engines, or correct it"


def without_decoder(engines: Sequence[EngineReport]) -> list[str]:
    """Models that can only be prefilled. PURE."""
    served = {name for engine in engines if engine.role is not Role.PREFILL for name in engine.models}
    return [
        f"{', '.join(alone)} of {engine.id} is served by no decode engine: start one, or take {engine.id} out"
        for engine in engines
        if engine.role is Role.PREFILL and (alone := sorted(set(engine.models) - served))
    ]


def mixed_blocks(engines: Sequence[EngineReport]) -> list[str]:
    """Models whose engines count blocks differently. PURE."""
    notes = []
    for model in sorted({name for engine in engines for name in engine.models}):
        sizes = {engine.block_size for engine in engines if model in engine.models and engine.block_size}
        if len(sizes) > 1:
            notes.append(
                f"engines of {model} have blocks of {' and '.join(map(str, sorted(sizes)))} tokens: "
                "matches are coarser than with one --block-size"
            )
    return notes


class Tokenizers:
    """Local tokenizers by source, each loaded once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.tokenization
        self._loaded: dict[str, asyncio.Task[LocalTokenizer]] = {}

    def source(self, card: ModelCard) -> tuple[str, bool]:
        """(where the model's tokenizer comes from, whether the configuration says so), as the router chooses."""
        models = self._settings.models
        named = models.get(card.id) or models.get(card.root or "") or self._settings.default
        return (named, True) if named is not None else (card.root or card.id, False)

    async def get(self, source: str, configured: bool) -> LocalTokenizer:
        """Raises `ConfigError`. Only what is configured may be downloaded."""
        task = self._loaded.get(source)
        if task is None:
            loading = asyncio.to_thread(load_tokenizer, source, offline=not configured)
            task = self._loaded[source] = asyncio.create_task(loading)
        return await task


class Probe:
    """The questions put to one engine."""

    def __init__(
        self, client: httpx.AsyncClient, settings: Settings, spec: EndpointSpec, tokenizers: Tokenizers
    ) -> None:
        self._settings = settings
        self._spec = spec
        self._tokenizers = tokenizers
        self._calls = Calls(client, spec.url, spec.api_key)
        self._report = EngineReport(id=spec.id, role=spec.role)

    async def run(self) -> EngineReport:
        report = self._report
        health = await self._calls.ask("GET", self._spec.health_path)
        report.health = "ok" if health.status == 200 else str(health.status or health.text)
        if health.status == 0:
            report.troubles.append(f"cannot be reached ({health.text}): {health.mend}")
            return report
        if health.status != 200:
            report.troubles.append(
                f"answers {health.status} on {self._spec.health_path}: wait until it is up, or correct the path"
            )
        if await self._models():
            await self._metrics()
            await self._events()
            await self._tokens()
        return report

    async def _models(self) -> bool:
        """False: there is no use in asking on."""
        report = self._report
        answer = await self._calls.ask("GET", "/v1/models")
        if answer.status in (401, 403):
            report.troubles.append("refuses the API key: correct its api_key, or upstream.api_key")
            return False
        try:
            report.models = read_models(answer.text) if answer.status == 200 else {}
        except FactsError:
            report.models = {}
        if not report.models:
            report.troubles.append(
                f"lists no model on /v1/models ({_said(answer)}): is it an OpenAI-compatible engine?"
            )
            return False
        version = await self._calls.ask("GET", "/version")
        try:
            report.version = read_version(version.text) if version.status == 200 else ""
        except FactsError:
            report.version = ""
        return True

    async def _metrics(self) -> None:
        report = self._report
        answer = await self._calls.ask("GET", "/metrics")
        page = read_page(answer.text, 0.0) if answer.status == 200 else PageReading(taken_at=0.0)
        engine = next(iter(page.engines.values()), None)
        if engine is None:
            report.notes.append(f"tells no load on /metrics ({_said(answer)}): the router counts its own requests only")
            return
        for name, value in page.impossible.items():
            report.notes.append(f"says {name} {value:g} on /metrics, which cannot be: it counts as not told")
        report.block_size, report.num_blocks = engine.block_size, engine.num_blocks
        if page.asleep:
            report.troubles.append("is asleep: wake it up (POST /wake_up), or take it out")
        if engine.block_size is None and self._settings.index.block_size == "auto":
            report.notes.append("does not tell its block size: set index.block_size")
        if engine.prefix_caching is False:
            report.notes.append("has prefix caching off: there is no cache to route by, start it with prefix caching")

    async def _events(self) -> None:
        report = self._report
        if not self._spec.publishes_kv_events:
            report.events = "off"
            return
        sources = await self._event_sources()
        if not sources:
            report.events = "none"
            report.notes.append(
                "publishes no KV events: its cache is guessed from its requests (start it with --kv-events-config)"
            )
            return
        addresses = [address for source in sources for address in (source.endpoint, source.replay_endpoint) if address]
        for address in addresses:
            if why := await unreachable(address, self._settings.upstream.connect_timeout_s):
                report.troubles.append(
                    f"publishes KV events at {address}, which cannot be reached ({why}): open the port, "
                    "or name the right address in its kv_events"
                )
        replay = all(source.replay_endpoint for source in sources)
        report.events = f"{len(sources)}{' with replay' if replay else ''}"
        if not replay:
            report.notes.append("has no replay socket: after a lost event its entries are dropped and learnt anew")

    async def _event_sources(self) -> list[KvEventSource]:
        events = self._spec.kv_events
        if events is not None:
            ranks = range(self._spec.data_parallel_size or 1)
            return [configured_source(self._spec, events, rank, rank) for rank in ranks]
        answer = await self._calls.ask("GET", "/kv_event_sources")
        try:
            return list(read_event_sources(answer.text, self._spec.host).values()) if answer.status == 200 else []
        except FactsError:
            return []

    async def _tokens(self) -> None:
        """Compares for the engine's base models; LoRA adapters share theirs."""
        outcomes = [await self._compare(card) for card in self._report.models.values() if card.parent is None]
        self._report.tokens = ", ".join(dict.fromkeys(outcomes))

    async def _compare(self, card: ModelCard) -> str:
        report = self._report
        source, configured = self._tokenizers.source(card)
        body = msgspec.json.encode({"model": card.id, **PROBE_CHAT})
        answer = await self._calls.ask("POST", "/tokenize", body)
        theirs = _token_ids(answer.text) if answer.status == 200 else None
        try:
            tokenizer = await self._tokenizers.get(source, configured)
            ours = (await asyncio.to_thread(tokenizer.chat, PROBE_CHAT)).ids
        except (ConfigError, NotRenderable) as error:
            if configured:
                report.troubles.append(f"{card.id}: {error}")
                return "no tokenizer"
            if theirs is not None and self._settings.tokenization.remote:
                report.notes.append(
                    f"{card.id} has no local tokenizer: prompts are tokenized by the engine, a call each"
                )
                return "by the engine"
            report.notes.append(f"{card.id} has no tokenizer: prompts are estimated, set tokenization.models")
            return "estimated"
        if theirs is None:
            report.notes.append(f"{card.id}: the engine has no /tokenize ({_said(answer)}) to compare {source} with")
            return "not compared"
        if ours == theirs:
            return f"equal ({len(ours)})"
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
        )
        report.troubles.append(
            f"{card.id}: {source} makes {len(ours)} tokens of a probe chat and the engine {len(theirs)}, "
            f"different from token {at} on: name the engine's own tokenizer and chat template in tokenization.models"
        )
        return "different"


def _token_ids(text: str) -> array[int] | None:
    try:
        return array("I", msgspec.json.decode(text, type=_Tokens).tokens)
    except (msgspec.DecodeError, OverflowError):
        return None


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _said(answer: Answer) -> str:
    return f"status {answer.status}" if answer.status else answer.text
