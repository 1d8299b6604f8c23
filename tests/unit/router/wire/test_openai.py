"""Reading a body keeps what routing needs, judges nothing, and never fails in any way but a 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import Api
from router.errors import InvalidRequest
from router.wire.openai import NOTHING, RENDER_FIELDS, Parsed, form_model, parse_request

PATHS = {
    Api.CHAT: "/v1/chat/completions",
    Api.COMPLETIONS: "/v1/completions",
    Api.RESPONSES: "/v1/responses",
    Api.MESSAGES: "/v1/messages",
}
GENERATING = list(PATHS)


def parse(api: Api, body: object) -> Parsed:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse_request(api, PATHS.get(api, "/v1/embeddings"), raw)


def test_a_chat_body_is_reduced_to_what_routing_needs() -> None:
    messages = [{"role": "user", "content": "hi"}]
    parsed = parse(
        Api.CHAT,
        {
            "model": "m",
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 7,
            "max_tokens": 9,
            "cache_salt": "s",
            "n": 2,
            "priority": -1,
            "temperature": 0.5,
            "logit_bias": {"1": 2},
            "chat_template_kwargs": {"enable_thinking": False},
        },
    )
    assert parsed == Parsed(
        model="m",
        stream=True,
        max_tokens=7,
        cache_salt="s",
        n=2,
        priority=-1,
        has_priority=True,
        include_usage=True,
        has_stream_options=True,
        fields={"messages": messages, "chat_template_kwargs": {"enable_thinking": False}},
    )


@pytest.mark.parametrize(
    ("api", "name"),
    [
        (Api.CHAT, "max_tokens"),
        (Api.CHAT, "max_completion_tokens"),
        (Api.COMPLETIONS, "max_tokens"),
        (Api.RESPONSES, "max_output_tokens"),
        (Api.MESSAGES, "max_tokens"),
    ],
)
def test_the_output_limit_has_a_name_of_its_own_in_each_api(api: Api, name: str) -> None:
    assert parse(api, {name: 12}).max_tokens == 12


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2], [[1], [2, 3]], [], "", [[]], None, {"x": 1}, [-1, 1.5]])
def test_a_completion_prompt_is_kept_in_whatever_form_it_came(prompt: object) -> None:
    assert parse(Api.COMPLETIONS, {"prompt": prompt}).fields["prompt"] == prompt


def test_null_and_absent_are_told_apart_in_the_fields() -> None:
    assert parse(Api.CHAT, {"tools": None}).fields == {"tools": None}
    assert parse(Api.CHAT, {}).fields == {}


WRONG = [None, 1, 1.5, True, "x", [], ["x"], {}, {"a": 1}]


@pytest.mark.parametrize("api", GENERATING)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_type_inside_is_the_engines_to_refuse(api: Api, wrong: object) -> None:
    names = ("model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "cache_salt", "n")
    body = dict.fromkeys((*names, "priority", "stream_options", "kv_transfer_params", *RENDER_FIELDS[api]), wrong)
    parsed = parse(api, body)
    assert parsed.model in (None, "x")
    assert parsed.n == 1
    assert parsed.fields == dict.fromkeys(RENDER_FIELDS[api], wrong)


@pytest.mark.parametrize(
    ("sent", "read"),
    [(True, True), ("true", True), ("Yes", True), (1, True), (1.0, True), (False, False), ("false", False), (0, False)],
)
def test_a_flag_is_read_as_the_engine_reads_it(sent: object, read: bool) -> None:
    assert parse(Api.CHAT, {"stream": sent}).stream is read


@pytest.mark.parametrize(
    ("sent", "read"), [(5, 5), (5.0, 5), ("5", 5), (0, None), (-3, None), (5.5, None), (True, None)]
)
def test_a_count_is_read_as_the_engine_reads_it(sent: object, read: int | None) -> None:
    assert parse(Api.COMPLETIONS, {"max_tokens": sent}).max_tokens == read


@pytest.mark.parametrize(
    "body",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kv_transfer_params": None},
        {"ec_transfer_params": {}},
        {"vllm_xargs": {"kv_transfer_params": "x"}},
        b'{"\\u006bv_transfer_params": {}}',
    ],
)
def test_steering_of_kv_transfer_is_noticed(body: object) -> None:
    assert parse(Api.CHAT, body).has_kv_transfer_params
    assert not parse(Api.CHAT, {"vllm_xargs": {"a": 1}}).has_kv_transfer_params


@pytest.mark.parametrize("api", GENERATING)
@pytest.mark.parametrize("body", [b"[]", b"1", b'"x"', b"null", b"true", b"[" * 20_000])
def test_json_that_is_not_an_object_is_refused(api: Api, body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="needs a JSON object as its body, not another JSON value"):
        parse(api, body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is empty"),
        (b" \r\n", "the body is empty"),
        (b"{", "not valid JSON"),
        (b'{"messages": }', "not valid JSON"),
        (b'{"model":"m"} x', "not valid JSON"),
        (b"{'model':'m'}", "not valid JSON"),
        (b'{"temperature":NaN}', "not valid JSON"),
        (b'{"messages":"\xff\xfe"}', "not valid UTF-8"),
        (b'{"messages":"\xe2\x82"}', "not valid UTF-8"),
        (b'\xef\xbb\xbf{"model":"m"}', "byte order mark"),
        ('{"model":"m"}'.encode("utf-16"), "byte order mark"),
        (b'{"messages":"x \\ud83d"}', "half of a surrogate pair"),
        (b'{"model":"\\udcf0"}', "half of a surrogate pair"),
        (b'{"messages":1e400}', "out of range"),
        (b'{"user":' + b"[" * 20_000, "nested too deeply"),
        (b'{"tools":' + b"[" * 20_000 + b"]" * 20_000 + b"}", "nested too deeply"),
        (b'{"tools":' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001, "nested too deeply"),
    ],
)
def test_what_no_engine_could_read_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        parse(Api.CHAT, body)
    assert refused.value.status == 400
    assert json.loads(refused.value.body())["error"]["type"] == "invalid_request_error"


def test_a_refusal_does_not_repeat_the_body() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(Api.CHAT, b'{"messages": "secret words')
    assert "secret" not in refused.value.message


def test_big_numbers_are_read_whole() -> None:
    assert parse(Api.COMPLETIONS, b'{"prompt":[123456789012345678901234567890]}').fields["prompt"] == [
        123456789012345678901234567890
    ]


@given(st.binary(max_size=60) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for api in GENERATING:
        try:
            parse(api, body)
        except InvalidRequest as refused:
            assert refused.message


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["model", "messages", "stream", "stream_options", "n", "vllm_xargs"]), _json))
def test_any_object_is_read(body: dict[str, Any]) -> None:
    assert parse(Api.CHAT, body).fields.get("messages") == body.get("messages")


def test_other_bodies_are_never_refused() -> None:
    assert parse(Api.OTHER, {"model": "m", "input": "x"}) == Parsed(model="m")
    assert parse(Api.OTHER, b"not json") == NOTHING
    assert parse(Api.OTHER, b"") == NOTHING


def test_the_model_of_an_upload_is_found() -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="model.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        b"RIFF\x00\xff\r\n--b\r\ncontent-disposition: form-data; name=model\r\n\r\n"
    )
    kind = "multipart/form-data; boundary=b"
    assert form_model(body + b"whisper-1\r\n--b--\r\n", kind) == "whisper-1"
    assert form_model(body + b"\xff\xfe\r\n--b--\r\n", kind) is None
    assert form_model(b"", kind) is None
    assert parse_request(Api.OTHER, "/v1/audio/transcriptions", body + b"w\r\n--b--", content_type=kind).model == "w"
    assert form_model(b"a=1&model=m", "application/x-www-form-urlencoded") == "m"
