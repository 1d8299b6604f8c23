from __future__ import annotations

import pytest

from kvindex.redis_address import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h", Address(kind="standalone", hosts=(("h", 6379),))),
        ("redis://h:1/2", Address(kind="standalone", hosts=(("h", 1),), db=2)),
        (
            "rediss://u:p%40ss@[fd00::1]:1",
            Address(kind="standalone", hosts=(("fd00::1", 1),), tls=True, username="u", password="p@ss"),
        ),
        ("redis://:p@h", Address(kind="standalone", hosts=(("h", 6379),), password="p")),
        (
            "redis+sentinel://u:p@a,b:3/kv/4?sentinel_user=s&sentinel_password=t",
            Address(
                kind="sentinel",
                hosts=(("a", 26379), ("b", 3)),
                username="u",
                password="p",
                service="kv",
                db=4,
                sentinel_username="s",
                sentinel_password="t",
            ),
        ),
        ("rediss+cluster://a:1,b:2", Address(kind="cluster", hosts=(("a", 1), ("b", 2)), tls=True)),
        ("unix:///run/r.sock?db=1", Address(kind="unix", path="/run/r.sock", db=1)),
    ],
)
def test_each_form_is_read(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:6379", "scheme"),
        ("http://:s3cret@h", "scheme"),
        ("redis://:s3cret@h:port", "host or port"),
        ("redis://:s3cret@h:99999", "host or port"),
        ("redis://a,b", "several hosts"),
        ("redis://h/x", "database"),
        ("redis://h?db=1&ssl=no", "ssl"),
        ("redis+sentinel://a,b", "service"),
        ("redis+cluster://a/1", "database"),
        ("redis://h/1/2", "too long"),
        ("redis://h/0#frag", "percent-encoded"),
        ("redis://:s3cret#1@h", "percent-encoded"),
        ("redis://:s3?cret%s3cret@h", "percent-encoded"),
        ("redis://:s3?s3cret=1@h", "percent-encoded"),
        ("redis://:x/s3cret@h", "percent-encoded"),
        ("redis://h?s3cret", "percent-encoded"),
        ("redis://::1:6379", "brackets"),
        ("redis://fd00::1", "brackets"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        parse_address(url)
    assert "s3cret" not in str(error.value)
