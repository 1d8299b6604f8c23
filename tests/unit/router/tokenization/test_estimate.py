"""An estimate keeps equal beginnings equal, tells pictures apart, and its count is near enough."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Api
from router.tokenization.estimate import MAX_HASHED_BYTES, estimate


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_a_next_turn_begins_with_the_ids_of_the_turn_before() -> None:
    turns = [user("a" * 50), {"role": "assistant", "content": "b" * 50}, user("c" * 50)]
    for api, name in ((Api.CHAT, "messages"), (Api.RESPONSES, "input"), (Api.MESSAGES, "messages")):
        before, after = estimate(api, {name: turns[:1]}), estimate(api, {name: turns})
        assert after.ids[: len(before.ids)] == before.ids
        assert after.total > before.total


def test_a_completion_is_its_bytes_in_fours() -> None:
    guess = estimate(Api.COMPLETIONS, {"prompt": "abcdefghij"})
    assert list(guess.ids) == [int.from_bytes(b"abcd", "little"), int.from_bytes(b"efgh", "little")]
    assert guess.total == 3


def test_a_batch_counts_as_a_whole_and_stands_for_its_longest_prompt() -> None:
    guess = estimate(Api.COMPLETIONS, {"prompt": ["abcd", "abcdefgh"]})
    assert (len(guess.ids), guess.total) == (2, 3)
    assert estimate(Api.COMPLETIONS, {"prompt": [[-1, 5], [6]]}).total == 3
    assert estimate(Api.COMPLETIONS, {"prompt": []}).total == 0


def test_a_picture_is_told_apart_but_counts_for_little() -> None:
    def turn(data: str) -> dict[str, object]:
        return {"messages": [user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}])]}

    one, other = estimate(Api.CHAT, turn("A" * 100_000)), estimate(Api.CHAT, turn("A" * 99_999 + "B"))
    assert one.ids != other.ids
    assert one.total < 50


def test_a_very_long_prompt_is_counted_whole_and_hashed_in_part() -> None:
    guess = estimate(Api.COMPLETIONS, {"prompt": "x" * (MAX_HASHED_BYTES * 2)})
    assert len(guess.ids) == MAX_HASHED_BYTES // 4
    assert guess.total == MAX_HASHED_BYTES // 2


@pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.OTHER])
def test_nothing_gives_nothing(api: Api) -> None:
    assert len(estimate(api, {}).ids) == 0


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "data"]), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["messages", "prompt", "input", "tools", "system"]), _json))
def test_nothing_a_client_may_send_raises(fields: dict[str, Any]) -> None:
    for api in Api:
        assert estimate(api, fields).total >= 0
