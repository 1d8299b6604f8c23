"""The demonstration's line: what is read from the router's metrics page."""

from __future__ import annotations

from loadtest.demo.status import Status, read_status

PAGE = """\
# TYPE kvrouter_requests counter
kvrouter_requests_total{api="chat",outcome="ok",status="200"} 7.0
kvrouter_requests_total{api="chat",outcome="client_gone",status="none"} 1.0
kvrouter_requests_total{api="chat",outcome="cut",status="200"} 2.0
# TYPE kvrouter_prompt_tokens counter
kvrouter_prompt_tokens_total{source="local"} 300.0
kvrouter_prompt_tokens_total{source="client"} 100.0
# TYPE kvrouter_matched_tokens counter
kvrouter_matched_tokens_total 100.0
# TYPE kvrouter_prefill_leg_seconds histogram
kvrouter_prefill_leg_seconds_bucket{le="+Inf"} 3.0
kvrouter_prefill_leg_seconds_count 3.0
kvrouter_prefill_leg_seconds_sum 1.0
# TYPE kvrouter_inflight_requests gauge
kvrouter_inflight_requests{endpoint="prefill-0"} 0.0
kvrouter_inflight_requests{endpoint="decode-0"} 2.0
"""


def test_a_page_becomes_one_line() -> None:
    assert read_status(PAGE).line() == (
        "requests 10 (2 failed) | hit rate 25% | prefilled apart 3 | in flight: prefill-0 0  decode-0 2"
    )


def test_an_empty_page_claims_no_hit_rate() -> None:
    status = read_status("")
    assert status == Status()
    assert status.hit_rate is None
    assert status.line().startswith("requests 0 | hit rate - |")
