from __future__ import annotations

import pytest

from router.wire.hosts import in_url, is_every_address, is_loopback, without_brackets


@pytest.mark.parametrize(
    ("host", "loopback", "every"),
    [
        ("127.0.0.1", True, False),
        ("127.1.2.3", True, False),
        ("::1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("0:0:0:0:0:0:0:0", False, True),
        ("10.0.0.1", False, False),
        ("router.example", False, False),
    ],
)
def test_what_a_host_is_shows_in_its_name(host: str, loopback: bool, every: bool) -> None:
    assert (is_loopback(host), is_every_address(host)) == (loopback, every)


@pytest.mark.parametrize(
    ("given", "plain", "written"),
    [
        ("[::1]", "::1", "[::1]"),
        ("::1", "::1", "[::1]"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost", "localhost"),
        ("[host]", "[host]", "[host]"),
    ],
)
def test_only_an_ipv6_address_has_brackets_and_only_in_a_url(given: str, plain: str, written: str) -> None:
    assert without_brackets(given) == plain
    assert in_url(plain) == written
