"""Pairs that a replay tells apart must stand in the same order over HTTP; others may stand as they like."""

from __future__ import annotations

import io

from rich.console import Console

from loadtest.replay_over_http.verdict import Both, Figures, complaints, pairs, tables


def both(policy: str, replay: float, http: float, *, e2e: float = 1.0, failed: int = 0) -> Both:
    return Both(
        policy=policy,
        replay=Figures(requests=10, ttft_s=replay, e2e_s=e2e, hit_rate=0.5),
        http=Figures(requests=10, ttft_s=http, e2e_s=e2e, hit_rate=0.5, failed=failed),
    )


def test_an_order_that_holds_has_no_complaint() -> None:
    outcomes = [both("a", 1.0, 1.1), both("b", 1.3, 1.2), both("c", 2.0, 5.0)]
    assert [(pair.better, pair.worse) for pair in pairs(outcomes, 0.15)] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert complaints(outcomes, 0.15) == []


def test_who_is_close_in_the_replay_may_change_places() -> None:
    outcomes = [both("a", 1.0, 1.5), both("b", 1.1, 1.0)]
    assert complaints(outcomes, 0.15) == []
    assert complaints(outcomes, 0.05) == ["TTFT: b takes 1.10 times what a does in the replay, 0.67 times over HTTP"]


def test_whole_answers_are_judged_too() -> None:
    outcomes = [both("a", 1.0, 1.0, e2e=4.0), both("b", 1.0, 1.0, e2e=5.0)]
    assert [(pair.measure, pair.better, pair.worse, pair.kept) for pair in pairs(outcomes, 0.15)] == [
        ("E2E", "a", "b", True)
    ]


def test_a_request_that_failed_is_a_complaint() -> None:
    assert complaints([both("a", 1.0, 1.0, failed=2)], 0.15) == ["a: 2 requests failed"]


def test_the_tables_show_both_columns_and_the_verdict() -> None:
    console = Console(width=140, file=io.StringIO(), record=True)
    for table in tables([both("a", 1.0, 1.5, failed=1), both("b", 1.3, 1.0)], 0.15):
        console.print(table)
    text = console.export_text()
    assert "10 (1 failed)" in text
    assert "REVERSED" in text
    assert "0.67" in text
