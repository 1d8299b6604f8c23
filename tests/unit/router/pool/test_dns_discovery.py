"""DNS discovery against a name server of our own; pauses are counted, not waited for."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Literal

import pytest

from router.core import Role
from router.errors import ConfigError
from router.pool.dns_discovery import DnsDiscovery, DnsName
from router.pool.spec import EndpointSpec
from tests.support.dns import NameServer, name_server

ENGINES = "engines.test"


class Steps:
    """A `sleep` that returns at once, writes down how long it should have been, and runs the script: one step before
    each question but the first. When the script is over it ends the watch."""

    def __init__(self, *script: Callable[[], object]) -> None:
        self.pauses: list[float] = []
        self._script = list(script)

    async def __call__(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self._script:
            raise Over
        self._script.pop(0)()


class Over(Exception):
    pass


def nothing() -> None:
    pass


def at(url: str) -> EndpointSpec:
    return EndpointSpec(url=url)


async def seen(
    server: NameServer,
    *script: Callable[[], object],
    make: Callable[[str], EndpointSpec] = at,
    name: str = ENGINES,
    kind: Literal["a", "srv"] = "a",
    port: int | None = 8000,
    scheme: Literal["http", "https"] = "http",
    path: str = "",
    timeout_s: float = 5.0,
) -> tuple[list[list[str]], Steps]:
    """The lists of URLs that a watch brings while the script runs."""
    steps = Steps(*script)
    asked = DnsName(
        name=name, kind=kind, port=port, scheme=scheme, path=path, timeout_s=timeout_s, nameserver=server.address
    )
    discovery = DnsDiscovery(asked, make, sleep=steps, rng=random.Random(1))
    lists: list[list[str]] = []
    watch: AsyncIterator[Sequence[EndpointSpec]] = discovery.watch()
    with pytest.raises(Over):
        async for specs in watch:
            lists.append([spec.url for spec in specs])
    return lists, steps


async def test_addresses_become_endpoints_in_a_steady_order() -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.2", "10.0.0.1"]

        def shuffle() -> None:
            server.records[ENGINES, "A"].reverse()

        lists, _ = await seen(server, shuffle, shuffle)
        assert lists == [["http://10.0.0.1:8000", "http://10.0.0.2:8000"]]


async def test_each_change_brings_the_whole_list() -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.1"]
        lists, _ = await seen(
            server,
            lambda: server.records.update({(ENGINES, "A"): ["10.0.0.1", "10.0.0.2"]}),
            lambda: server.records.update({(ENGINES, "A"): ["10.0.0.2"]}),
        )
        assert [len(urls) for urls in lists] == [1, 2, 1]
        assert lists[-1] == ["http://10.0.0.2:8000"]


async def test_an_engine_with_an_address_of_either_family_is_one_endpoint() -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.1"]
        server.records[ENGINES, "AAAA"] = ["fd00::1"]
        assert (await seen(server))[0] == [["http://10.0.0.1:8000"]]
        del server.records[ENGINES, "A"]
        assert (await seen(server))[0] == [["http://[fd00::1]:8000"]]


async def test_service_records_bring_their_ports_and_only_the_first_priority_counts() -> None:
    async with name_server() as server:
        server.records["_http._tcp.engines.test", "SRV"] = [
            "0 10 8001 pod-1.engines.test.",
            "0 10 8000 pod-0.engines.test.",
            "10 10 8000 spare.engines.test.",
        ]
        lists, _ = await seen(server, name="_http._tcp.engines.test", kind="srv", port=None, scheme="https", path="/v")
        assert lists == [["https://pod-0.engines.test:8000/v", "https://pod-1.engines.test:8001/v"]]


async def test_what_is_found_gets_its_role_and_key() -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.1"]
        made: list[EndpointSpec] = []

        def make(url: str) -> EndpointSpec:
            made.append(EndpointSpec(url=url, role=Role.DECODE, api_key="k"))
            return made[-1]

        await seen(server, make=make)
        assert [(spec.id, spec.role) for spec in made] == [("10.0.0.1:8000", Role.DECODE)]


async def test_a_name_server_that_fails_or_is_silent_changes_nothing() -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.1"]

        def fail() -> None:
            server.failing = True

        def be_silent() -> None:
            server.failing, server.silent = False, True

        def recover() -> None:
            server.silent = False
            server.records[ENGINES, "A"] = ["10.0.0.2"]

        lists, _ = await seen(server, fail, nothing, be_silent, recover, timeout_s=0.3)
        assert lists == [["http://10.0.0.1:8000"], ["http://10.0.0.2:8000"]]


async def test_a_name_server_that_fails_at_the_start_is_asked_again() -> None:
    async with name_server() as server:
        server.failing = True
        server.records[ENGINES, "A"] = ["10.0.0.1"]

        def recover() -> None:
            server.failing = False

        assert (await seen(server, nothing, recover))[0] == [["http://10.0.0.1:8000"]]


@pytest.mark.parametrize("left", [{}, {(ENGINES, "TXT"): ["x"]}], ids=["no such name", "no such records"])
async def test_an_empty_answer_is_believed_the_third_time_in_a_row(left: dict[tuple[str, str], list[str]]) -> None:
    async with name_server() as server:
        some = {(ENGINES, "A"): ["10.0.0.1"]}
        server.records = some

        def empty() -> None:
            server.records = left

        def back() -> None:
            server.records = some

        lists, _ = await seen(server, empty, nothing, back, empty, nothing)
        assert lists == [["http://10.0.0.1:8000"]]
        server.records = some
        lists, _ = await seen(server, empty, nothing, nothing, back)
        assert lists == [["http://10.0.0.1:8000"], [], ["http://10.0.0.1:8000"]]


async def test_a_name_without_records_at_the_start_is_an_empty_list_at_once() -> None:
    async with name_server() as server:
        assert (await seen(server, nothing, nothing))[0] == [[]]


@pytest.mark.parametrize(("ttl", "shortest", "longest"), [(0, 0.9, 1.1), (3, 2.7, 3.3), (300, 4.5, 5.5)])
async def test_it_asks_again_when_the_answer_expires_within_bounds(ttl: int, shortest: float, longest: float) -> None:
    async with name_server() as server:
        server.records[ENGINES, "A"] = ["10.0.0.1"]
        server.ttl = ttl
        _, steps = await seen(server, nothing, nothing)
        assert len(steps.pauses) == 3
        assert all(shortest <= pause <= longest for pause in steps.pauses)


async def test_an_endpoint_that_cannot_be_used_is_left_out() -> None:
    async with name_server() as server:
        server.records[ENGINES, "SRV"] = ["0 0 0 pod-0.engines.test.", "0 0 8000 pod-1.engines.test."]
        assert (await seen(server, kind="srv"))[0] == [["http://pod-1.engines.test:8000"]]


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no port"):
        DnsName(name=ENGINES)
    with pytest.raises(ConfigError, match="not an IP address"):
        DnsName(name=ENGINES, port=1, nameserver=("ns.test", 53))
