"""Who may administer, by keys and listener."""

from __future__ import annotations

import hashlib

import pytest

from router.api.gate import Gate, Surface, audit_name
from router.api.keys import Key, KeyRing
from router.errors import Forbidden, Unauthorized

HOST = (b"host", b"127.0.0.1:8000")


def ring(*keys: str) -> KeyRing:
    return KeyRing(Key(digest=hashlib.sha256(key.encode()).digest(), name=key) for key in keys)


def gate(
    admins: KeyRing | None = None,
    clients: KeyRing | None = None,
    *,
    loopback: bool = True,
    surface: Surface = Surface.ALL,
) -> Gate:
    open_to_all = KeyRing()
    return Gate(admins or open_to_all, lambda: clients or open_to_all, loopback=loopback, surface=surface)


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", b"Bearer " + key.encode()


@pytest.mark.parametrize("loopback", [True, False])
@pytest.mark.parametrize("surface", Surface)
def test_where_there_are_admin_keys_nothing_else_opens(loopback: bool, surface: Surface) -> None:
    guarded = gate(ring("root"), ring("client"), loopback=loopback, surface=surface)
    assert audit_name(guarded.admit([bearer("root")])) == "root"
    for headers in ([], [HOST], [bearer("client")]):
        with pytest.raises(Unauthorized, match="one of the router's admin keys"):
            guarded.admit(headers)


@pytest.mark.parametrize("surface", Surface)
def test_without_admin_keys_nobody_administers_over_the_network(surface: Surface) -> None:
    for headers in ([HOST], [bearer("client")]):
        with pytest.raises(Forbidden):
            gate(clients=ring("client"), loopback=False, surface=surface).admit(headers)


def test_on_loopback_whoever_may_use_the_router_administers_it() -> None:
    assert gate().admit([HOST]).name == ""
    assert gate(clients=ring("client")).admit([bearer("client")]).name == "client"
    with pytest.raises(Unauthorized):
        gate(clients=ring("client")).admit([HOST])


def test_a_loopback_listener_of_its_own_asks_for_no_key() -> None:
    gate(clients=ring("client"), surface=Surface.ADMINISTRATION).admit([HOST])


@pytest.mark.parametrize("name", [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip", b"x-forwarded-host"])
@pytest.mark.parametrize("surface", [Surface.ALL, Surface.ADMINISTRATION])
def test_through_a_proxy_on_this_host_an_admin_key_is_needed(name: bytes, surface: Surface) -> None:
    through = (name, b"203.0.113.7")
    with pytest.raises(Forbidden):
        gate(surface=surface).admit([HOST, through])
    with pytest.raises(Forbidden):
        gate(clients=ring("client"), surface=surface).admit([HOST, through, bearer("client")])
    assert gate(ring("root"), surface=surface).admit([HOST, through, bearer("root")]).name == "root"


@pytest.mark.parametrize(
    "field",
    [
        (b"origin", b"http://evil.example"),
        (b"origin", b"null"),
        (b"host", b"evil.example"),
        (b"host", b"evil.example:8000"),
        (b"host", b"127.0.0.1.evil.example"),
        (b"host", b"10.0.0.1:8000"),
        (b"host", b""),
    ],
)
def test_a_page_in_this_hosts_browser_does_not(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(Forbidden):
        gate().admit([field])


@pytest.mark.parametrize(
    "host", [b"localhost", b"LOCALHOST:8000", b"127.0.0.1", b"127.0.0.2:1", b"[::1]:8000", b"[::1]"]
)
def test_this_hosts_own_names_do(host: bytes) -> None:
    gate().admit([(b"host", host)])
