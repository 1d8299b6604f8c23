from collections import Counter

from router.scheduling.rendezvous import session_key, weight, winner
from tests.support.scheduling import candidate

POOL = [candidate(f"10.0.0.{i}:8000") for i in range(10)]


def test_the_weight_is_the_same_in_every_process() -> None:
    # Pinned: routers of different versions must agree on who owns a prefix.
    assert weight(1, "a:8000") == 14731056373313135006
    assert session_key("session-1") == 13870706736031703813


def test_keys_beyond_64_bits_and_negative_ones_are_taken() -> None:
    assert weight(2**64 + 1, "a") == weight(1, "a")
    assert 0 <= weight(-1, "a") < 2**64


def test_keys_spread_evenly() -> None:
    counts = Counter(winner(key, POOL) for key in range(5000))
    assert min(counts.values()) > 400
    assert max(counts.values()) < 600
