"""Whether an address answers."""

from __future__ import annotations

from loadtest.cluster import answers
from loadtest.ports import free_ports


def test_an_address_where_nobody_listens_does_not_answer() -> None:
    assert not answers(f"http://127.0.0.1:{free_ports(1)}/ready")
