from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.headers import HOP_BY_HOP, STEERING, accepted_request_id, request_headers, response_headers


def test_custom_fields_cross_in_order_and_repeated() -> None:
    raw = [(b"x-forwarded-for", b"1"), (b"x-mine", b"a"), (b"x-forwarded-for", b"2")]
    assert request_headers(raw)[0] == tuple(raw)
    assert response_headers([(b"set-cookie", b"a"), (b"set-cookie", b"b")]) == [
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
    ]


def test_what_connection_names_crosses_neither_way() -> None:
    raw = [(b"connection", b"close, X-Secret-Hop"), (b"x-secret-hop", b"1"), (b"x-other", b"2")]
    assert request_headers(raw)[0] == ((b"x-other", b"2"),)
    assert response_headers(raw) == [(b"x-other", b"2")]


@given(st.sampled_from(sorted(HOP_BY_HOP)))
def test_hop_by_hop_fields_cross_neither_way(name: bytes) -> None:
    assert request_headers([(name, b"v")])[0] == ()
    assert response_headers([(name, b"v")]) == []


@pytest.mark.parametrize(
    "name",
    [b"x-prefiller-host-port", b"x-gateway-destination-endpoint", b"x-data-parallel-rank", b"x-llm-d-slo-ttft-ms"],
)
def test_fields_that_steer_routing_are_dropped_unless_trusted(name: bytes) -> None:
    assert request_headers([(name, b"10.0.0.1:80")]) == ((), {})
    forwarded, routing = request_headers([(name, b"v")], trusted=frozenset({name}))
    assert forwarded == ((name, b"v"),)
    assert routing == {name.decode(): "v"}


@pytest.mark.parametrize("name", sorted(STEERING))
def test_fields_that_a_caller_may_steer_by_are_read_and_end_here(name: bytes) -> None:
    forwarded, routing = request_headers([(name, b"v"), (b"x-gateway-other", b"1")], steering=STEERING)
    assert routing == {name.decode(): "v"}
    # vLLM itself reads this one.
    assert forwarded == (((name, b"v"),) if name == b"x-vllm-priority" else ())


def test_credentials_for_the_router_stay_with_it() -> None:
    raw = [(b"authorization", b"Bearer k"), (b"x-api-key", b"k"), (b"proxy-authorization", b"b")]
    assert request_headers(raw)[0] == ()
    assert request_headers(raw, forward_authorization=True)[0] == ((b"authorization", b"Bearer k"),)


def test_a_session_id_is_read_and_passed_on() -> None:
    forwarded, routing = request_headers([(b"x-session-id", b"s1")])
    assert forwarded == ((b"x-session-id", b"s1"),)
    assert routing == {"x-session-id": "s1"}


def test_an_engine_cannot_speak_for_the_router() -> None:
    assert response_headers([(b"x-kvrouter-endpoint", b"forged"), (b"x-own", b"1")]) == [(b"x-own", b"1")]


def test_an_edited_body_loses_its_length() -> None:
    raw = [(b"content-length", b"5"), (b"content-type", b"text/event-stream")]
    assert response_headers(raw, keep_length=False) == [(b"content-type", b"text/event-stream")]
    assert response_headers(raw) == raw


@pytest.mark.parametrize("value", [b"a b", b"a\nb", b"", b"x" * 129, b"\xff", b"\x1b[31m"])
def test_a_request_id_that_could_forge_a_log_line_is_not_taken_over(value: bytes) -> None:
    assert accepted_request_id(value) is None


def test_a_plain_request_id_is_taken_over() -> None:
    assert accepted_request_id(b"req-1_a.b:c") == "req-1_a.b:c"
    assert accepted_request_id(None) is None
