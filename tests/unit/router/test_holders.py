from __future__ import annotations

from router.holders import ResponseHolders


def test_the_oldest_holder_is_forgotten_at_the_limit() -> None:
    holders = ResponseHolders(limit=2)
    for number in range(3):
        holders.put(f"resp_{number}", "a")
    assert holders.get("resp_0") is None
    assert holders.get("resp_2") == "a"
    assert len(holders) == 2
