from __future__ import annotations

import socket
from typing import Any

import pytest

from router.errors import ConfigError
from router.listening import address, listen, listeners
from router.settings import Settings, load

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def settings(**server: Any) -> Settings:
    flags = {f"server.{key}": value for key, value in server.items()}
    return load(None, environ={}, flags={"endpoints": ["http://127.0.0.1:1"], **flags})


def connects(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True


@needs_ipv6
def test_two_colons_are_every_address_of_both_kinds() -> None:
    with listen("::", 0) as listener:
        port = listener.getsockname()[1]
        assert connects("127.0.0.1", port)
        assert connects("::1", port)


@needs_ipv6
def test_one_ipv6_address_is_that_address_alone() -> None:
    with listen("::1", 0) as listener:
        port = listener.getsockname()[1]
        assert connects("::1", port)
        assert not connects("127.0.0.1", port)


@needs_ipv6
def test_an_ipv6_address_is_told_in_brackets() -> None:
    with listen("::1", 0) as listener:
        assert address(listener) == f"[::1]:{listener.getsockname()[1]}"
    with listen("127.0.0.1", 0) as listener:
        assert address(listener) == f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        (
            "port",
            "server.port: cannot listen on 127.0.0.1:{port} (address already in use): "
            "stop what listens there, or give another --port",
        ),
        (
            "admin_port",
            "server.admin_port: cannot listen on 127.0.0.1:{port} (address already in use): "
            "stop what listens there, or give another server.admin_port",
        ),
    ],
)
def test_the_listener_that_is_in_the_way_is_named(taken: str, sentence: str) -> None:
    with listen("127.0.0.1", 0) as other, listen("127.0.0.1", 0) as free:
        port, left = other.getsockname()[1], free.getsockname()[1]
        free.close()
        ports = {"port": left, "admin_port": left} | {taken: port}
        with pytest.raises(ConfigError) as refused, listeners(settings(**ports)):
            pass
    assert str(refused.value) == sentence.format(port=port)


def test_what_was_opened_before_is_closed() -> None:
    with listen("127.0.0.1", 0) as other, listen("127.0.0.1", 0) as free:
        taken, left = other.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(ConfigError), listeners(settings(port=left, admin_port=taken)):
            pass
        assert not connects("127.0.0.1", left)


def test_an_address_that_is_not_ours_is_told_with_its_own_key() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
        given = settings(port=port, admin_port=8001, admin_host="192.0.2.1", admin_keys=["k3y"])
        free.close()
        with (
            pytest.raises(ConfigError, match=r"^server.admin_host: .* give another server.admin_host, like"),
            listeners(given),
        ):
            pass


@pytest.mark.parametrize("key", ["host", "admin_host"])
def test_a_host_may_be_given_as_it_stands_in_a_url(key: str) -> None:
    assert getattr(settings(**{key: "[::1]"}).server, key) == "::1"
