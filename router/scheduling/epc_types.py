"""What each plugin type of llm-d's EndpointPickerConfig becomes here. PURE.

Types that choose (filters, scorers, pickers, deciders) are ours under the same name. Producers become hints for
tokenization and index; what this router does by itself (scraping, header handling, parsing) is accepted and has
nothing to do. Anything else is refused by name. Sources: llm-d-router's plugin documents and guides, 2025-2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from router.scheduling.epc_producers import LEGACY_KEYS, Hints, Strict, convert, producer_hints

OWN_WORK = frozenset(
    {
        "core-metrics-extractor",
        "disagg-headers-handler",
        "dp-rank-header-handler",
        "endpoint-notification-source",
        "metrics-data-source",
        "model-server-protocol-models",
        "models-data-source",
        "prefill-header-handler",
        # Request bodies are told apart by their paths.
        "anthropic-parser",
        "openai-parser",
        "passthrough-parser",
        "vllmhttp-parser",
    }
)
"""Accepted with any parameters: the router does this by itself, with settings of its own."""

ALIASES: Mapping[str, str] = {
    "by-label-selector": "label-selector-filter",
    "precise-prefix-cache-scorer": "prefix-cache-scorer",
    "utilization-detector": "utilization-filter",
}

_PREDICTED = "use prefix-cache-affinity-filter with token-load-scorer instead"
MENDS: Mapping[str, str] = {
    "always-disagg-multimodal-decider": "encode endpoints are not routed to: remove it and deciders.encode",
    "encode-filter": "encode endpoints are not routed to: remove it and the encode profile",
    "latency-scorer": _PREDICTED,
    "predicted-latency-producer": _PREDICTED,
    "predicted-latency-scorer": _PREDICTED,
    "slo-headroom-tier-filter": _PREDICTED,
    "slo-aware-profile-handler": "use single-profile-handler or disagg-profile-handler",
    "header-profile-handler": "use single-profile-handler or disagg-profile-handler",
    "concurrency-detector": "use active-request-filter in the profiles instead",
}
"""What to do about types of llm-d that are not offered; for the others the mend is to remove them."""


class _Header(Strict, frozen=True):
    header: str | None = None


class _SessionSource(Strict, frozen=True):
    header: str | None = None
    attribute: str | None = None


class _SessionId(Strict, frozen=True):
    sources: tuple[_SessionSource, ...] = ()
    eviction_ttl_seconds: float | None = None
    eviction_sweep_seconds: float | None = None


class _SessionAffinity(Strict, frozen=True):
    """Both of llm-d's ways to remember a session, an echoed header or a table with TTL: one rendezvous hash here."""

    algorithm: Literal["encoded_endpoint_header", "session_id_header"] | None = None
    strategy: Literal["encoded_endpoint_header", "session_id"] | None = None
    header_name: str | None = None
    profile_name: str | None = None
    eviction_ttl_seconds: float | None = None
    eviction_sweep_seconds: float | None = None
    miss_threshold: int | None = None
    encoded_endpoint_header_config: _Header = _Header()
    session_id_config: _SessionId = _SessionId()


class _UtilizationDetector(Strict, frozen=True):
    queue_depth_threshold: int = 5
    kv_cache_util_threshold: float = 0.8
    metrics_staleness_threshold: str | None = None
    headroom: float = 0.0


_WIRING = ("prefixMatchInfoProducerName", "inFlightLoadProducerName")
"""Which producer instance to read: here there is one index and one in-flight count."""


def producers_read(parameters: Mapping[str, Any]) -> list[str]:
    """Names of the producers that a plugin's parameters say it reads."""
    return [name for name in (parameters.get(key) for key in _WIRING) if isinstance(name, str) and name]


def own_parameters(type_: str, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Hints]:
    """The parameters of llm-d's plugin as ours takes them, and what they say beside. Values are not judged here."""
    if type_ == "precise-prefix-cache-scorer":
        return {}, producer_hints(type_, parameters)
    own = {key: value for key, value in parameters.items() if key not in _WIRING}
    translate = _TRANSLATIONS.get(type_)
    return (own, Hints()) if translate is None else translate(own)


def _prefix_cache_scorer(own: dict[str, Any]) -> tuple[dict[str, Any], Hints]:
    legacy = {key: own.pop(key) for key in sorted(LEGACY_KEYS & own.keys())}
    for old, new in (("prefixLengthWeight", "matchLengthWeight"), ("maxModelLen", "matchLengthScaleTokens")):
        if old in own:
            own[new] = own.pop(old)
    return own, producer_hints("approx-prefix-cache-producer", legacy) if legacy else Hints()


def _session_affinity(own: dict[str, Any]) -> tuple[dict[str, Any], Hints]:
    given = convert(own, _SessionAffinity)
    sources = [source.header for source in given.session_id_config.sources if source.header]
    header = given.header_name or given.encoded_endpoint_header_config.header or next(iter(sources), None)
    return ({} if header is None else {"headerName": header}), Hints()


def _utilization_detector(own: dict[str, Any]) -> tuple[dict[str, Any], Hints]:
    """As a filter in a profile it drops endpoints over either threshold, unless that leaves nobody."""
    given = convert(own, _UtilizationDetector)
    room = 1.0 + given.headroom
    caps = (
        ("waiting-queue", given.queue_depth_threshold * room),
        ("kv-cache-utilization", min(1.0, given.kv_cache_util_threshold * room)),
    )
    conditions = [{"metric": metric, "maxValue": cap} for metric, cap in caps]
    return {"conditions": conditions, "fallbackOnEmpty": True}, Hints()


def _no_hit_lru(own: dict[str, Any]) -> tuple[dict[str, Any], Hints]:
    own.pop("lruSize", None)
    return own, Hints()


def _picker(own: dict[str, Any]) -> tuple[dict[str, Any], Hints]:
    # llm-d's default 1 would leave nobody to fall back to.
    if own.get("maxNumOfEndpoints") == 1:
        del own["maxNumOfEndpoints"]
    return own, Hints()


_TRANSLATIONS: Mapping[str, Callable[[dict[str, Any]], tuple[dict[str, Any], Hints]]] = {
    "max-score-picker": _picker,
    "no-hit-lru-scorer": _no_hit_lru,
    "prefix-cache-scorer": _prefix_cache_scorer,
    "random-picker": _picker,
    "session-affinity-filter": _session_affinity,
    "session-affinity-scorer": _session_affinity,
    "utilization-detector": _utilization_detector,
    "weighted-random-picker": _picker,
}
