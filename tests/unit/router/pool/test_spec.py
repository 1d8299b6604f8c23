from __future__ import annotations

from typing import Any

import pytest

from router.core import Role
from router.errors import ConfigError
from router.pool.ranks import expand
from router.pool.spec import EndpointSpec, KvEventsSpec


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://engine-1:8000", "engine-1:8000"),
        ("http://engine-1:8000/", "engine-1:8000"),
        ("HTTP://Engine-1", "engine-1:80"),
        ("https://engine-1", "engine-1:443"),
        ("https://engine-1/tenant/a/", "engine-1:443/tenant/a"),
        ("http://[::1]:8000", "[::1]:8000"),
    ],
)
def test_an_upstream_is_named_by_its_address(url: str, name: str) -> None:
    assert EndpointSpec(url=url).id == name


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("engine:8000", "does not begin with http"),
        ("ftp://engine", "does not begin with http"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://user:secret@engine", "carries credentials"),
        ("http://engine?key=secret", "query or fragment"),
        ("http://engine#secret", "query or fragment"),
        ("http://engine:99999", "bad host or port"),
        ("http://engine:0", "bad host or port"),
        ("http://engine:80x", "bad host or port"),
        ("http://[::1", "bad host or port"),
        ("http://eng ine", "bad host or port"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_the_mend_and_without_secrets(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        EndpointSpec(url=url)
    assert "secret" not in str(refused.value)
    assert "write http" in str(refused.value) or "api_key" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": "a b"}, "endpoint name"),
        ({"name": ""}, "endpoint name"),
        ({"data_parallel_size": 0}, "data_parallel_size of engine:80"),
        ({"health_path": "health"}, "health_path"),
    ],
)
def test_other_fields_are_judged_too(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        EndpointSpec(url="http://engine", **fields)


@pytest.mark.parametrize("address", ["http://h:1", "tcp://h", "h:5557", "tcp://:5557"])
def test_an_event_address_that_cannot_be_dialled_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"kv_events\.endpoint"):
        KvEventsSpec(endpoint=address)
    with pytest.raises(ConfigError, match=r"kv_events\.replay_endpoint"):
        KvEventsSpec(endpoint="tcp://*:5557", replay_endpoint=address)


def test_a_key_is_never_shown() -> None:
    spec = EndpointSpec(url="http://engine", api_key="secret-key")
    assert "secret" not in repr(spec)
    assert "secret" not in repr(expand(spec, ()))


def test_an_upstream_of_one_rank_is_one_endpoint_without_rank_header() -> None:
    spec = EndpointSpec(url="http://engine:8000", role=Role.PREFILL, api_key="k", labels={"zone": "a"})
    (ranked,) = expand(spec, ())
    assert (ranked.endpoint.id, ranked.endpoint.rank, ranked.global_rank) == ("engine:8000", None, None)
    assert (ranked.endpoint.role, ranked.endpoint.api_key) == (Role.PREFILL, "k")
    assert ranked.endpoint.labels == {"zone": "a"}


def test_a_server_that_holds_one_rank_of_a_group_takes_no_header_and_reports_under_its_global_rank() -> None:
    (ranked,) = expand(EndpointSpec(url="http://engine:8000"), {3})
    assert (ranked.endpoint.id, ranked.endpoint.rank, ranked.global_rank) == ("engine:8000", None, 3)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("first", [0, 2, 4])
def test_dsc_05_each_rank_is_addressed_by_its_local_index(size: int, first: int) -> None:
    ranked = expand(EndpointSpec(url="http://engine:8000"), range(first, first + size))
    assert [r.endpoint.rank for r in ranked] == list(range(size))
    assert [r.endpoint.id for r in ranked] == [f"engine:8000/{local}" for local in range(size)]
    assert [r.global_rank for r in ranked] == list(range(first, first + size))


@pytest.mark.parametrize("configured", [2, 4])
@pytest.mark.parametrize("shown", [2, 4])
def test_dsc_05_the_engines_own_count_of_ranks_wins(configured: int, shown: int) -> None:
    spec = EndpointSpec(url="http://engine:8000", data_parallel_size=configured)
    assert len(expand(spec, ())) == configured
    assert len(expand(spec, range(shown))) == shown
