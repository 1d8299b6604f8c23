"""Whose word counts for what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.callers import TrustedPeers, allowed_priority, caller, steering_of
from router.api.keys import NOBODY, Key
from router.core import Caller
from router.wire.headers import STEERING, is_routing_control

WEB = Key(digest=b"d", name="web", tenant="shop")
SAID = {"x-llm-d-inference-fairness-id": "other", "x-llm-d-inference-objective": "urgent"}


class TestPeers:
    @pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "192.0.2.9"])
    def test_who_is_in_a_named_network_is_trusted(self, peer: str) -> None:
        assert TrustedPeers(["10.0.0.0/8", "fd00::/8", "192.0.2.9"]).hold(peer)

    @pytest.mark.parametrize("peer", ["11.1.2.3", "::ffff:11.1.2.3", "fe00::7", "192.0.2.10", "", "unix:", "a.example"])
    def test_nobody_else_is(self, peer: str) -> None:
        assert not TrustedPeers(["10.0.0.0/8", "fd00::/8", "192.0.2.9"]).hold(peer)

    def test_without_networks_nobody_is(self) -> None:
        assert not TrustedPeers().hold("127.0.0.1")


class TestCaller:
    def test_whoever_has_no_key_is_nobody_in_particular(self) -> None:
        assert caller(NOBODY, False, {}, -5) == Caller()

    def test_a_keys_requests_are_its_tenants_whatever_they_say(self) -> None:
        assert caller(WEB, False, {}, None) == Caller("shop", None, None, "web")

    def test_a_trusted_callers_word_counts(self) -> None:
        assert caller(WEB, True, SAID, -5) == Caller("other", "urgent", 5, "web")

    def test_the_older_names_count_too_and_the_newer_ones_first(self) -> None:
        older = {"x-gateway-inference-fairness-id": "old"}
        assert caller(NOBODY, True, older, None).tenant == "old"
        assert caller(NOBODY, True, older | SAID, None).tenant == "other"

    @pytest.mark.parametrize("word", ["", "two words", "x" * 129, "t\x1b[31m", "\u00fc"])
    def test_what_could_not_be_a_label_is_not_taken(self, word: str) -> None:
        said = {"x-llm-d-inference-fairness-id": word, "x-llm-d-inference-objective": word}
        assert caller(WEB, True, said, None) == Caller("shop", None, None, "web")

    @pytest.mark.parametrize(("asked", "counts"), [("batch", "batch"), ("urgent", "chat"), (None, "chat")])
    def test_a_key_may_name_its_own_objectives_and_the_first_is_its_default(
        self, asked: str | None, counts: str
    ) -> None:
        key = Key(digest=b"d", objectives=("chat", "batch"))
        said = {} if asked is None else {"x-llm-d-inference-objective": asked}
        assert caller(key, False, said, None).objective == counts

    @given(st.integers(), st.none() | st.integers())
    def test_nobody_gets_more_importance_than_its_right(self, asked: int, most: int | None) -> None:
        counts = allowed_priority(Key(digest=b"d", max_priority=most), False, asked)
        assert counts is None if most is None else counts == min(asked, most)
        assert allowed_priority(NOBODY, True, asked) == asked


def test_who_may_send_what() -> None:
    assert steering_of(NOBODY, False) == frozenset()
    assert steering_of(NOBODY, True) == STEERING
    with_objectives = steering_of(Key(digest=b"d", objectives=("chat",)), False)
    assert with_objectives == {b"x-llm-d-inference-objective", b"x-gateway-inference-objective"}
    assert all(map(is_routing_control, STEERING))
