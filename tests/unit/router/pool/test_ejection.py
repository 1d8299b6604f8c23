from __future__ import annotations

from collections.abc import Sequence

import pytest

from router.core import ModelCard, Role
from router.pool.ejection import may_eject
from router.pool.health import HealthPolicy
from router.pool.record import UpstreamRecord
from router.pool.spec import EndpointSpec

POLICY = HealthPolicy(request_failures_down=1)


def record(sign: str, role: Role = Role.BOTH, *, model: str = "m") -> UpstreamRecord:
    """`sign`: + in service, x taken out by requests, - by probes."""
    made = UpstreamRecord(EndpointSpec(url=f"http://{sign.encode().hex()}-{role}-{model}:1", role=role))
    made.models = {model: ModelCard(id=model)}
    made.tracker = made.tracker.probe_failed(POLICY, "refused") if sign == "-" else made.tracker.probe_ok(POLICY)
    if sign == "x":
        made.tracker = made.tracker.request_failed(POLICY)
    return made


def others(signs: str) -> Sequence[UpstreamRecord]:
    return [record(sign) for sign in signs]


@pytest.mark.parametrize(
    ("signs", "may"),
    [
        ("", False),
        ("+", True),
        ("x", False),
        ("-", False),
        ("++", True),
        ("x+", False),
        ("x++", True),
        ("xx++", False),
        ("--+", True),
    ],
)
def test_at_most_half_of_the_peers_go_by_requests_and_never_the_last(signs: str, may: bool) -> None:
    assert may_eject(record("+"), others(signs), 0.5) is may


def test_a_share_of_nothing_still_lets_one_go() -> None:
    assert may_eject(record("+"), others("+++"), 0.0)
    assert not may_eject(record("+"), others("x++"), 0.0)


def test_only_those_that_can_stand_in_count() -> None:
    decode = record("+", Role.DECODE)
    assert not may_eject(decode, [record("+", Role.PREFILL)], 0.5)
    assert may_eject(decode, [record("+", Role.BOTH)], 0.5)
    assert not may_eject(decode, [record("+", Role.DECODE, model="other")], 0.5)
    assert may_eject(record("+", Role.PREFILL), [decode], 0.5)
    assert not may_eject(record("+", Role.PREFILL), [record("-", Role.DECODE)], 0.5)
    assert not may_eject(record("+", Role.PREFILL), [record("x", Role.PREFILL), decode], 0.5)
    unknown = record("+", Role.DECODE)
    unknown.models = {}
    assert may_eject(decode, [unknown], 0.5)
