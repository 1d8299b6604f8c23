"""An endpoint's URL and a request's head."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.wire.http_head import Origin, OriginError, RequestHeadError, parse_origin, request_head

HERE = parse_origin("http://engine:8000")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://engine", Origin("engine", 80, False, b"engine", "")),
        ("http://engine:80", Origin("engine", 80, False, b"engine", "")),
        ("https://engine:443/", Origin("engine", 443, True, b"engine", "")),
        ("https://engine:8443/a/b/", Origin("engine", 8443, True, b"engine:8443", "/a/b")),
        ("http://[::1]:8000/v", Origin("::1", 8000, False, b"[::1]:8000", "/v")),
        ("HTTP://Engine:8000", Origin("engine", 8000, False, b"engine:8000", "")),
        ("http://bücher.example", Origin("xn--bcher-kva.example", 80, False, b"xn--bcher-kva.example", "")),
    ],
)
def test_a_url_is_taken_apart(url: str, origin: Origin) -> None:
    assert parse_origin(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "engine:8000",
        "ftp://e",
        "http://",
        "http://e:x",
        "http://e:99999",
        "http://u@e",
        "http://e?q",
        "http://[::1",
    ],
)
def test_an_unusable_url_says_why(url: str) -> None:
    with pytest.raises(OriginError, match="endpoint URL"):
        parse_origin(url)


def test_the_head_carries_the_callers_fields_in_order_between_its_own() -> None:
    fields = [(b"x-forwarded-for", b"1"), (b"x-forwarded-for", b"2")]
    assert request_head(HERE, b"POST", "/v1/x?a=b", fields, 5) == (
        b"POST /v1/x?a=b HTTP/1.1\r\nhost: engine:8000\r\nx-forwarded-for: 1\r\nx-forwarded-for: 2\r\n"
        b"accept-encoding: identity\r\ncontent-length: 5\r\n\r\n"
    )


def test_a_coding_the_caller_asks_for_stays() -> None:
    head = request_head(HERE, b"GET", "/", [(b"accept-encoding", b"gzip")], 0)
    assert head == b"GET / HTTP/1.1\r\nhost: engine:8000\r\naccept-encoding: gzip\r\n\r\n"


def test_raw_bytes_of_a_query_are_percent_encoded() -> None:
    query = "é".encode().decode("latin-1")
    assert request_head(HERE, b"GET", f"/?a={query}", [], 0).startswith(b"GET /?a=%C3%A9 HTTP/1.1\r\n")


@pytest.mark.parametrize("path", ["", "x", "//a b", "/\n", "/\u20ac", "*"])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(RequestHeadError):
        request_head(HERE, b"GET", path, [], 0)


@pytest.mark.parametrize(("method", "length", "framed"), [(b"POST", 0, True), (b"GET", 0, False), (b"DELETE", 3, True)])
def test_a_length_is_written_where_a_body_may_be(method: bytes, length: int, framed: bool) -> None:
    assert (b"content-length: %d" % length in request_head(HERE, method, "/", [], length)) is framed


@pytest.mark.parametrize("name", [b"host", b"content-length", b"transfer-encoding", b"connection", b"te", b"upgrade"])
def test_hop_by_hop_and_framing_fields_are_left_out_hdr_04(name: bytes) -> None:
    assert request_head(HERE, b"POST", "/", [(name, b"evil")], 0) == request_head(HERE, b"POST", "/", [], 0)


@given(st.text(max_size=20), st.binary(max_size=20), st.binary(min_size=1, max_size=20))
def test_no_input_adds_a_line(path: str, name: bytes, value: bytes) -> None:
    try:
        head = request_head(HERE, b"POST", "/" + path, [(b"x" + name, value)], 0)
    except RequestHeadError:
        return
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == 6
    assert head.endswith(b"\r\n\r\n")
