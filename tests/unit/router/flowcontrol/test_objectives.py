from __future__ import annotations

import pytest

from router.core import Caller
from router.flowcontrol.objectives import Objective, Objectives

OBJECTIVES = Objectives(
    {"chat": Objective(priority=10, ttft_slo_s=0.5), "batch": Objective(priority=-5, max_wait_s=600.0)},
    max_wait_s=30.0,
    class_wait_s={10: 5.0},
)


@pytest.mark.parametrize(
    ("caller", "priority"),
    [
        (Caller(), 0),
        (Caller(objective="chat"), 10),
        (Caller(objective="chat", priority=1), 10),
        (Caller(objective="unknown"), 0),
        (Caller(objective="unknown", priority=3), 3),
        (Caller(priority=-7), -7),
        (Caller(priority=10**9), 100),
        (Caller(priority=-(10**9)), -100),
    ],
)
def test_the_objective_decides_the_class_then_the_priority_within_bounds(caller: Caller, priority: int) -> None:
    assert OBJECTIVES.standing(caller, {}, 0.0).priority == priority


def test_the_longest_wait_is_the_objectives_else_the_classes_else_the_common_one() -> None:
    waits = [OBJECTIVES.standing(Caller(objective=name), {}, 1.0).expires_at for name in ("batch", "chat", None)]
    assert waits == [601.0, 6.0, 31.0]


def test_what_is_due_comes_from_the_request_else_the_objective_else_the_longest_wait() -> None:
    chat = Caller(objective="chat")
    assert OBJECTIVES.standing(chat, {"x-llm-d-slo-ttft-ms": "250"}, 1.0).due == 1.25
    assert OBJECTIVES.standing(chat, {}, 1.0).due == 1.5
    assert OBJECTIVES.standing(Caller(), {}, 1.0).due == 31.0


@pytest.mark.parametrize("value", ["", "soon", "-1", "0", "inf", "nan"])
def test_a_deadline_that_is_none_counts_for_nothing(value: str) -> None:
    assert OBJECTIVES.standing(Caller(), {"x-llm-d-slo-ttft-ms": value}, 0.0).due == 30.0


def test_what_must_be_whole_by_then_is_due_by_then() -> None:
    def due(deadline_ms: str, **headers: str) -> float:
        return OBJECTIVES.standing(Caller(), {"x-kvrouter-deadline-ms": deadline_ms, **headers}, 1.0).due

    assert [due("2000"), due("60000")] == [3.0, 31.0]
    assert due("2000", **{"x-llm-d-slo-ttft-ms": "500"}) == 1.5


def test_a_time_to_live_shortens_the_wait_and_never_lengthens_it() -> None:
    def wait_s(ttl: str) -> float:
        return OBJECTIVES.standing(Caller(), {"x-llm-d-inference-ttl": ttl}, 0.0).max_wait_s

    assert [wait_s("2s"), wait_s("1m"), wait_s("never")] == [2.0, 30.0, 30.0]
