"""``kvrouter_*`` metrics: an observer of requests, and a collector of the parts' own counts at scrape time.

Labels are bounded: endpoints are the pool's, reasons, outcomes and kinds are enumerated, and a model name is a label
only while some endpoint serves it. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.core import Decision, EndpointState, Health, InferenceRequest, Inflight, TokenizedPrompt
from router.observability.events import Answered, Dispatched, Ended, FirstToken, LegFailed, Outcome

_TTFT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
_E2E = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_STEP = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class IndexFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the KV index tells of itself at a scrape."""

    blocks: Mapping[tuple[str, str], int]
    """(endpoint id, tier) -> blocks held."""
    speculative: int
    """Entries held on expectation."""
    history: int
    """Entries of endpoints without KV events, from what was sent to them."""
    stale: bool
    """The shared truth (Redis) cannot be reached: routing goes on from memory."""
    event_lag_s: Mapping[str, float]
    """Endpoint id -> age of the newest event batch when it was applied."""
    event_age_s: Mapping[str, float]
    """Endpoint id -> seconds since the last event batch."""
    events: Mapping[tuple[str, str], int]
    """(endpoint id, kind) -> messages: applied, duplicate, gap, malformed, ..."""


class Sources(Protocol):
    """Where the collector reads at scrape time."""

    def states(self) -> Sequence[EndpointState]: ...

    def inflight(self) -> Mapping[str, Inflight]: ...

    def index(self) -> IndexFigures: ...

    def active(self) -> int: ...

    def loop_lag_s(self) -> float: ...

    def plugin_failures(self) -> Mapping[str, int]: ...

    def rate_limited(self) -> Mapping[str, int]: ...

    def task_restarts(self) -> Mapping[str, int]: ...


class Metrics:
    """Implements `router.observability.events.Observer` and `AnswerObserver`."""

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        Gauge("kvrouter_build_info", "1, with the version", ["version"], registry=registry).labels(version).set(1)
        self._requests = Counter(
            "kvrouter_requests", "Requests ended, by outcome", ["api", "outcome", "status"], registry=registry
        )
        self._ttft = Histogram(
            "kvrouter_time_to_first_token_seconds",
            "From the request's arrival to its first content token",
            ["disaggregated"],
            buckets=_TTFT,
            registry=registry,
        )
        self._itl = Histogram(
            "kvrouter_inter_token_latency_seconds",
            "Mean time between a request's tokens after the first, once a request",
            buckets=_ITL,
            registry=registry,
        )
        self._e2e = Histogram(
            "kvrouter_e2e_seconds", "From arrival to the last byte", ["api"], buckets=_E2E, registry=registry
        )
        self._queue = Histogram(
            "kvrouter_queue_seconds",
            "From a request's head to the start of work: its body's arrival, and waiting to be admitted",
            buckets=_STEP,
            registry=registry,
        )
        self._tokenize = Histogram(
            "kvrouter_tokenize_seconds", "Rendering, tokenizing and hashing a prompt", buckets=_STEP, registry=registry
        )
        self._decide = Histogram(
            "kvrouter_decision_seconds", "Matching in the index and deciding", buckets=_STEP, registry=registry
        )
        self._prefill = Histogram(
            "kvrouter_prefill_leg_seconds", "Prefill legs that led to a hand-off", buckets=_TTFT, registry=registry
        )
        self._ttft_error = Histogram(
            "kvrouter_ttft_prediction_error_seconds",
            "How far a leg's time from dispatch to first token was from what was predicted",
            ["endpoint"],
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "kvrouter_prompt_tokens", "Prompt tokens routed, by where the count is from", ["source"], registry=registry
        )
        self._matched_tokens = Counter(
            "kvrouter_matched_tokens",
            "Prompt tokens the index expected to be cached where they were sent",
            registry=registry,
        )
        self._cached_tokens = Counter(
            "kvrouter_cached_tokens", "Prompt tokens engines reported as cached, where they did", registry=registry
        )
        self._output_tokens = Counter("kvrouter_output_tokens", "Tokens engines produced", registry=registry)
        self._decisions = Counter("kvrouter_decisions", "Decisions by reason", ["reason"], registry=registry)
        self._dispatches = Counter(
            "kvrouter_dispatches", "Legs sent, fallbacks apart", ["endpoint", "leg", "fallback"], registry=registry
        )
        self._leg_failures = Counter(
            "kvrouter_upstream_errors", "Attempts that led to no answer", ["endpoint", "leg", "kind"], registry=registry
        )
        self._continuations = Counter(
            "kvrouter_continuations",
            "Times that another engine went on with a broken stream, by how the request ended",
            ["outcome"],
            registry=registry,
        )

    def watch(self, sources: Sources) -> None:
        """Reads `sources` at every scrape from now on."""
        self.registry.register(_Parts(sources))

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        return generate_latest(self.registry)

    def forget_endpoint(self, endpoint_id: str) -> None:
        """Drops the series of an endpoint that left the pool."""
        for family in (self._dispatches, self._leg_failures, self._ttft_error):
            for labels in [values for values in family._metrics if values[0] == endpoint_id]:
                family.remove(*labels)

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None:
        self._decisions.labels(decision.reason).inc()

    def on_dispatch(self, event: Dispatched) -> None:
        self._dispatches.labels(event.endpoint_id, event.leg.value, "true" if event.attempt else "false").inc()

    def on_leg_failed(self, event: LegFailed) -> None:
        self._leg_failures.labels(event.endpoint_id, event.leg.value, event.kind).inc()

    def on_first_token(self, event: FirstToken) -> None:
        """The time itself is counted at the end, where it is known whether the request was disaggregated."""
        if event.predicted_s is not None:
            self._ttft_error.labels(event.endpoint_id).observe(abs(event.since_dispatch_s - event.predicted_s))

    def on_answered(self, event: Answered) -> None:
        self._count(event.api, event.outcome, event.status, event.e2e_s)

    def _count(self, api: str, outcome: Outcome, status: int | None, e2e_s: float) -> None:
        self._requests.labels(api, outcome.value, "none" if status is None else str(status)).inc()
        self._e2e.labels(api).observe(e2e_s)

    def on_end(self, event: Ended) -> None:
        self._count(event.api.value, event.outcome, event.status, event.e2e_s)
        if event.ttft_s is not None:
            self._ttft.labels("true" if event.prefill_endpoint_id is not None else "false").observe(event.ttft_s)
        for histogram, value in (
            (self._itl, event.itl_s),
            (self._queue, event.queue_s),
            (self._tokenize, event.tokenize_s),
            (self._decide, event.decide_s),
            (self._prefill, event.prefill_s),
        ):
            if value is not None:
                histogram.observe(value)
        if event.endpoint_id is not None and event.prompt_tokens:
            self._prompt_tokens.labels(event.token_source.value).inc(event.prompt_tokens)
            if event.matched_tokens:
                self._matched_tokens.inc(event.matched_tokens)
            if event.cached_tokens:
                self._cached_tokens.inc(event.cached_tokens)
        if event.output_tokens:
            self._output_tokens.inc(event.output_tokens)
        if event.continued:
            self._continuations.labels(event.outcome.value).inc(event.continued)


class _Parts(Collector):
    """The counts that parts keep themselves."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterable[Metric]:
        yield from self._pool()
        yield from self._index()
        sources = self._sources
        yield GaugeMetricFamily("kvrouter_active_requests", "Exchanges under way", value=sources.active())
        yield GaugeMetricFamily(
            "kvrouter_loop_lag_seconds", "How late the event loop last ran a timer", value=sources.loop_lag_s()
        )
        failures = CounterMetricFamily(
            "kvrouter_plugin_failures", "Plugin calls that raised and were skipped", labels=["plugin"]
        )
        for plugin, count in sources.plugin_failures().items():
            failures.add_metric([plugin], count)
        yield failures
        limited = CounterMetricFamily(
            "kvrouter_rate_limited", "Requests refused by an API key's rates, by what ran out", labels=["limit"]
        )
        for limit, count in sources.rate_limited().items():
            limited.add_metric([limit], count)
        yield limited
        restarts = CounterMetricFamily(
            "kvrouter_task_restarts", "Background tasks that failed and were restarted", labels=["task"]
        )
        for task, count in sources.task_restarts().items():
            restarts.add_metric([task], count)
        yield restarts

    def _pool(self) -> Iterable[Metric]:
        states = self._sources.states()
        inflight = self._sources.inflight()
        endpoints = GaugeMetricFamily("kvrouter_endpoints", "Endpoints by role and health", labels=["role", "health"])
        count: dict[tuple[str, str], int] = {}
        for state in states:
            key = (state.endpoint.role.value, state.health.value)
            count[key] = count.get(key, 0) + 1
        for key, number in count.items():
            endpoints.add_metric(list(key), number)
        yield endpoints
        up = GaugeMetricFamily("kvrouter_endpoint_up", "1 unless unhealthy or draining", labels=["endpoint", "role"])
        requests = GaugeMetricFamily(
            "kvrouter_inflight_requests", "This router's requests on an endpoint", labels=["endpoint"]
        )
        prefill = GaugeMetricFamily(
            "kvrouter_inflight_prefill_tokens",
            "Uncached prompt tokens dispatched, no first token yet",
            labels=["endpoint"],
        )
        tokens = GaugeMetricFamily(
            "kvrouter_inflight_tokens", "Prompt and expected output tokens in flight", labels=["endpoint"]
        )
        exact = GaugeMetricFamily(
            "kvrouter_index_exact", "1 when KV events feed the index, 0 when history does", labels=["endpoint"]
        )
        for state in states:
            name = state.endpoint.id
            now = inflight.get(name, Inflight())
            up.add_metric([name, state.endpoint.role.value], state.health in (Health.HEALTHY, Health.UNKNOWN))
            requests.add_metric([name], now.requests)
            prefill.add_metric([name], now.prefill_tokens)
            tokens.add_metric([name], now.tokens)
            exact.add_metric([name], state.index.value == "exact")
        yield from (up, requests, prefill, tokens, exact)

    def _index(self) -> Iterable[Metric]:
        figures = self._sources.index()
        blocks = GaugeMetricFamily("kvrouter_index_blocks", "Blocks the index holds", labels=["endpoint", "tier"])
        for (endpoint, tier), number in figures.blocks.items():
            blocks.add_metric([endpoint, tier], number)
        yield blocks
        yield GaugeMetricFamily(
            "kvrouter_index_speculative_blocks", "Blocks held on expectation", value=figures.speculative
        )
        yield GaugeMetricFamily(
            "kvrouter_index_history_blocks", "Blocks guessed from what was sent", value=figures.history
        )
        yield GaugeMetricFamily(
            "kvrouter_index_stale", "1 while the shared index cannot be reached", value=figures.stale
        )
        lag = GaugeMetricFamily(
            "kvrouter_kv_event_lag_seconds", "From an engine's event to its application", labels=["endpoint"]
        )
        for endpoint, seconds in figures.event_lag_s.items():
            lag.add_metric([endpoint], seconds)
        age = GaugeMetricFamily("kvrouter_kv_event_age_seconds", "Since an engine's last event", labels=["endpoint"])
        for endpoint, seconds in figures.event_age_s.items():
            age.add_metric([endpoint], seconds)
        yield from (lag, age)
        events = CounterMetricFamily(
            "kvrouter_kv_event_messages", "KV-event messages by what became of them", labels=["endpoint", "kind"]
        )
        for (endpoint, kind), number in figures.events.items():
            events.add_metric([endpoint, kind], number)
        yield events
