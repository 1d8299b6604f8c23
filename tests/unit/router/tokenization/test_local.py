"""Token ids of whole requests: special tokens, truncation, media."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from router.core import Api
from router.tokenization.encoder import best_encoder
from router.tokenization.errors import NotRenderable
from router.tokenization.exact import client_tokens, local_tokens
from router.tokenization.local import LocalTokenizer, truncate
from tests.support.tokenization import CHATML, renderer, small_tokenizer

_hf = small_tokenizer(adds_bos=True)
BOS = _hf.token_to_id("<|bos|>")


def tokenizer(template: str = CHATML) -> LocalTokenizer:
    return LocalTokenizer("t", best_encoder(_hf, "t"), renderer(template))


def encoded(text: str, special: bool = False) -> list[int]:
    ids: list[int] = _hf.encode(text, add_special_tokens=special).ids
    return ids


def ids_of(api: Api, template: str = CHATML, **fields: Any) -> list[int]:
    return list(local_tokens(tokenizer(template), api, fields).ids)


HI = [{"role": "user", "content": "hi"}]
CHATML_HI = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
WITH_BOS = "{{ bos_token }}{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("api", "template", "fields", "ids"),
    [
        (Api.CHAT, CHATML, {"messages": HI}, encoded(CHATML_HI)),
        (Api.CHAT, CHATML, {"messages": HI, "add_special_tokens": True}, [BOS, *encoded(CHATML_HI)]),
        (Api.CHAT, WITH_BOS, {"messages": HI}, [BOS, *encoded("hi")]),
        (Api.CHAT, WITH_BOS, {"messages": HI, "add_special_tokens": True}, [BOS, BOS, *encoded("hi")]),
        (Api.COMPLETIONS, CHATML, {"prompt": "hi"}, [BOS, *encoded("hi")]),
        (Api.COMPLETIONS, CHATML, {"prompt": "hi", "add_special_tokens": False}, encoded("hi")),
        (Api.COMPLETIONS, CHATML, {"prompt": ""}, [BOS]),
    ],
)
def test_special_tokens_are_added_as_the_engine_adds_them(
    api: Api, template: str, fields: dict[str, Any], ids: list[int]
) -> None:
    assert ids_of(api, template, **fields) == ids


def test_a_completion_whose_text_is_a_rendered_chat_has_the_chats_tokens() -> None:
    text = ids_of(Api.COMPLETIONS, prompt=CHATML_HI, add_special_tokens=False)
    assert text == ids_of(Api.CHAT, messages=HI)


def test_all_chat_like_apis_reach_the_same_tokens() -> None:
    chat = ids_of(Api.CHAT, messages=[{"role": "system", "content": "S"}, *HI])
    assert ids_of(Api.RESPONSES, instructions="S", input="hi") == chat
    assert ids_of(Api.MESSAGES, system="S", messages=[{"role": "user", "content": "hi"}]) == chat


def test_a_batch_counts_as_a_whole_and_stands_for_its_longest_prompt() -> None:
    prompts = ["short", "this is the longest of the prompts", "middle one"]
    batch = local_tokens(tokenizer(), Api.COMPLETIONS, {"prompt": prompts})
    assert list(batch.ids) == encoded(prompts[1], special=True)
    assert batch.total == sum(len(encoded(prompt, special=True)) for prompt in prompts)


@pytest.mark.parametrize(
    ("prompt", "ids", "total"),
    [
        ([5, 6, 7], [5, 6, 7], 3),
        ([[5], [6, 7]], [6, 7], 3),
        ([[]], [], 0),
        ([-1], [], 1),
        ([[-1], [4]], [4], 2),
        ([1.5], [], 1),
        ([9223372036854775808], [], 1),
        ([999999999], [999999999], 1),
        ([[5], "x"], [5], 1),
    ],
)
def test_client_token_ids_are_taken_as_they_are(prompt: list[Any], ids: list[int], total: int) -> None:
    sent = client_tokens({"prompt": prompt})
    assert sent is not None
    assert (list(sent.ids), sent.total) == (ids, total)


@pytest.mark.parametrize("prompt", ["x", ["x"], [], None, {}, [True], [None], 5])
def test_text_is_no_client_token_ids(prompt: object) -> None:
    assert client_tokens({"prompt": prompt}) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": None},
        {"prompt": []},
        {"prompt": ["x", 5]},
        {"prompt": {}},
        {"prompt": "x", "suffix": "y"},
        {"prompt": "x", "prompt_embeds": "AAAA"},
        {"prompt": "x", "add_special_tokens": "yes"},
        {"prompt": "lone \ud83d surrogate"},
    ],
)
def test_a_prompt_that_only_the_engine_can_judge_is_left_to_it(fields: dict[str, Any]) -> None:
    with pytest.raises(NotRenderable):
        local_tokens(tokenizer(), Api.COMPLETIONS, fields)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"truncate_prompt_tokens": 2}, [4, 5]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "left"}, [4, 5]),
        ({"truncate_prompt_tokens": 2, "truncation_side": "right"}, [1, 2]),
        ({"truncate_prompt_tokens": 9}, [1, 2, 3, 4, 5]),
        ({"truncate_prompt_tokens": 0}, []),
        ({"truncate_prompt_tokens": -1}, [3, 4, 5]),
    ],
)
def test_prompts_are_truncated_as_the_engine_truncates_them(fields: dict[str, Any], kept: list[int]) -> None:
    assert list(truncate(array("I", [1, 2, 3, 4, 5]), fields, 4)) == kept


@pytest.mark.parametrize(
    "fields",
    [{"truncate_prompt_tokens": "2"}, {"truncate_prompt_tokens": -2}, {"truncate_prompt_tokens": -1},
     {"truncate_prompt_tokens": 2, "truncation_side": "middle"}],
)  # fmt: skip
def test_a_truncation_that_cannot_be_known_is_left_to_the_engine(fields: dict[str, Any]) -> None:
    with pytest.raises(NotRenderable):
        truncate(array("I", [1, 2, 3]), fields, None)


def test_ids_end_where_media_begin_to_matter_but_text_after_them_counts() -> None:
    image = {"type": "image_url", "image_url": {"url": "http://nowhere.invalid/x.png"}}
    turns: list[dict[str, Any]] = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": ["look at this", image, "please"]},
    ]
    cut = local_tokens(tokenizer(), Api.CHAT, {"messages": turns})
    # The template gets text, so the image's place is in front of its message's text: after "user\n".
    assert list(cut.ids) == encoded("<|im_start|>system\nS<|im_end|>\n<|im_start|>")
    assert cut.total > len(cut.ids) + len(encoded("look at this please"))
    other = {"type": "image_url", "image_url": {"url": "http://nowhere.invalid/other.png"}}
    turns[1]["content"] = [other]
    assert local_tokens(tokenizer(), Api.CHAT, {"messages": turns}).ids == cut.ids
