"""Ports: as many in a row as were asked for, and free."""

from __future__ import annotations

import socket

from loadtest.ports import free_ports


def test_ports_are_free_and_in_a_row() -> None:
    first = free_ports(5)
    held = [socket.create_server(("127.0.0.1", port)) for port in range(first, first + 5)]
    for server in held:
        server.close()
