from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.core import Decision, EndpointState, Inflight, Leg, TokenizedPrompt, TokenSource
from router.observability.events import EXPLAIN, Answered, Dispatched, FirstToken, LegFailed, Outcome
from router.observability.metrics import IndexFigures, Metrics
from tests.support.journey import endpoint, request
from tests.support.observations import ended


class FakeSources:
    def states(self) -> Sequence[EndpointState]:
        return [endpoint("a")]

    def inflight(self) -> Mapping[str, Inflight]:
        return {"a": Inflight(2, 30, 40)}

    def index(self) -> IndexFigures:
        return IndexFigures(
            blocks={("a", "device"): 7},
            speculative=3,
            history=5,
            stale=False,
            event_lag_s={"a": 0.25},
            event_age_s={"a": 1.5},
            events={("a", "applied"): 9},
        )

    def active(self) -> int:
        return 2

    def loop_lag_s(self) -> float:
        return 0.001

    def rate_limited(self) -> Mapping[str, int]:
        return {"tokens": 3}

    def plugin_failures(self) -> Mapping[str, int]:
        return {"mine": 4}

    def task_restarts(self) -> Mapping[str, int]:
        return {"probe a": 1}


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = metrics.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_request_counts_once_with_its_tokens_and_times() -> None:
    metrics = Metrics("1")
    metrics.on_end(ended())
    seen = samples(metrics)
    assert seen["kvrouter_requests_total", (("api", "chat"), ("outcome", "ok"), ("status", "200"))] == 1
    assert seen["kvrouter_prompt_tokens_total", (("source", "local"),)] == 100
    assert seen["kvrouter_matched_tokens_total", ()] == 64
    assert seen["kvrouter_cached_tokens_total", ()] == 48
    assert seen["kvrouter_output_tokens_total", ()] == 10
    assert seen["kvrouter_time_to_first_token_seconds_sum", (("disaggregated", "false"),)] == pytest.approx(0.2)
    assert seen["kvrouter_inter_token_latency_seconds_count", ()] == 1
    assert seen["kvrouter_queue_seconds_sum", ()] == pytest.approx(0.0002)


def test_an_answer_without_a_journey_counts_by_its_end() -> None:
    metrics = Metrics("1")
    metrics.on_answered(Answered(request_id="r", api="chat", outcome=Outcome.CLIENT_ERROR, status=400, e2e_s=0.001))
    metrics.on_answered(Answered(request_id="r", api=EXPLAIN, outcome=Outcome.CLIENT_GONE, status=None, e2e_s=0.1))
    seen = samples(metrics)
    assert seen["kvrouter_requests_total", (("api", "chat"), ("outcome", "client_error"), ("status", "400"))] == 1
    assert seen["kvrouter_requests_total", (("api", "explain"), ("outcome", "client_gone"), ("status", "none"))] == 1
    assert seen["kvrouter_e2e_seconds_count", (("api", "chat"),)] == 1


def test_a_refused_request_counts_no_tokens_and_no_first_token() -> None:
    metrics = Metrics("1")
    metrics.on_end(
        ended(outcome=Outcome.REFUSED, status=429, endpoint_id=None, ttft_s=None, itl_s=None, output_tokens=None)
    )
    seen = samples(metrics)
    assert seen["kvrouter_requests_total", (("api", "chat"), ("outcome", "refused"), ("status", "429"))] == 1
    assert not any(name.startswith("kvrouter_prompt_tokens_total") for name, _ in seen)
    assert not any(name == "kvrouter_time_to_first_token_seconds_count" for name, _ in seen)


def test_decisions_dispatches_and_failures_count_by_bounded_words() -> None:
    metrics = Metrics("1")
    prompt = TokenizedPrompt(token_ids=(), source=TokenSource.NONE, token_count=0)
    metrics.on_decision(request(), prompt, Decision(decode=(), reason="pd"))
    metrics.on_dispatch(Dispatched(request_id="r", leg=Leg.DECODE, endpoint_id="a", attempt=1))
    metrics.on_leg_failed(LegFailed(request_id="r", leg=Leg.PREFILL, endpoint_id="a", kind="refused"))
    seen = samples(metrics)
    assert seen["kvrouter_decisions_total", (("reason", "pd"),)] == 1
    assert seen["kvrouter_dispatches_total", (("endpoint", "a"), ("fallback", "true"), ("leg", "decode"))] == 1
    assert seen["kvrouter_upstream_errors_total", (("endpoint", "a"), ("kind", "refused"), ("leg", "prefill"))] == 1


def test_an_endpoint_that_left_leaves_no_series() -> None:
    metrics = Metrics("1")
    for name in ("a", "b"):
        metrics.on_first_token(
            FirstToken(request_id="r", endpoint_id=name, ttft_s=1.0, since_dispatch_s=1.0, predicted_s=0.5)
        )
        metrics.on_dispatch(Dispatched(request_id="r", leg=Leg.DECODE, endpoint_id=name, attempt=0))
    metrics.forget_endpoint("a")
    page = metrics.render()
    assert b'endpoint="a"' not in page
    assert b'endpoint="b"' in page


def test_the_parts_own_counts_are_read_at_each_scrape() -> None:
    metrics = Metrics("1")
    metrics.watch(FakeSources())
    seen = samples(metrics)
    assert seen["kvrouter_inflight_requests", (("endpoint", "a"),)] == 2
    assert seen["kvrouter_inflight_prefill_tokens", (("endpoint", "a"),)] == 30
    assert seen["kvrouter_index_blocks", (("endpoint", "a"), ("tier", "device"))] == 7
    assert seen["kvrouter_index_stale", ()] == 0
    assert seen["kvrouter_kv_event_age_seconds", (("endpoint", "a"),)] == 1.5
    assert seen["kvrouter_kv_event_messages_total", (("endpoint", "a"), ("kind", "applied"))] == 9
    assert seen["kvrouter_plugin_failures_total", (("plugin", "mine"),)] == 4
    assert seen["kvrouter_task_restarts_total", (("task", "probe a"),)] == 1
    assert seen["kvrouter_endpoints", (("health", "healthy"), ("role", "both"))] == 1
