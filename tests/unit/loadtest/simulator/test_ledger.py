"""The record of what was sent is bounded and counts what it is told."""

from __future__ import annotations

import hashlib

from loadtest.simulator.ledger import Ledger


def test_the_oldest_answers_are_forgotten() -> None:
    ledger = Ledger(capacity=2)
    for name in ("a", "b", "a"):
        ledger.open(name, "/", 0.0)
    assert len(ledger.find("a")) == 1
    assert [entry.request_id for entry in ledger.recent(10)] == ["a", "b"]
    ledger.open("c", "/", 0.0)
    assert ledger.find("b") == []


def test_an_entry_digests_what_was_sent() -> None:
    entry = Ledger().open("a", "/v1/completions", 1.0)
    entry.sent(b"one")
    entry.sent(b"two")
    view = entry.view()
    assert view["sha256"] == hashlib.sha256(b"onetwo").hexdigest()
    assert (view["chunks"], view["bytes"], view["aborted"]) == (2, 6, False)


def test_only_an_answer_under_way_can_be_aborted() -> None:
    entry = Ledger().open("a", "/", 1.0)
    entry.abort(2.0)
    entry.abort(3.0)
    assert entry.aborted_at == 2.0
    done = Ledger().open("b", "/", 1.0)
    done.done = True
    done.abort(2.0)
    assert not done.aborted
