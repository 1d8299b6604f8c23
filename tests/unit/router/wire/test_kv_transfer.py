"""The legs of a disaggregated request, byte for byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.core import Api
from router.wire.kv_transfer import (
    ask_for_usage,
    can_disaggregate,
    decode_leg_body,
    hand_off,
    prefill_leg_body,
    strip_generate_params,
    strip_transfer_params,
)
from router.wire.openai import parse_request

CHAT = (
    b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":true,'
    b'"stream_options":{"include_usage":true},"max_tokens":64,"min_tokens":5,"temperature":0.30000000000000004}'
)


def test_the_prefill_leg_asks_for_one_unstreamed_token_and_keeps_the_blocks() -> None:
    leg = prefill_leg_body(CHAT, Api.CHAT)
    assert json.loads(leg) == {
        "model": "m",
        "messages": [{"role": "user", "content": "é"}],
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "min_tokens": 1,
        "temperature": 0.30000000000000004,
        "kv_transfer_params": {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "remote_host": None,
            "remote_port": None,
        },
    }
    assert leg.startswith(b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"stream":false,')


@pytest.mark.parametrize(
    ("api", "limits"),
    [
        (Api.COMPLETIONS, {"max_tokens", "min_tokens"}),
        (Api.RESPONSES, {"max_output_tokens"}),
    ],
)
def test_each_api_is_limited_under_its_own_names(api: Api, limits: set[str]) -> None:
    leg = json.loads(prefill_leg_body(b"{}", api))
    assert {key for key, value in leg.items() if value == 1 and value is not True} == limits
    assert leg["stream"] is False


def test_the_decode_leg_differs_from_the_clients_body_only_in_the_parameters() -> None:
    params = b'{"remote_block_ids":[[7, 8]],"remote_host":"h"}'
    assert decode_leg_body(CHAT, params) == CHAT[:-1] + b',"kv_transfer_params":' + params + b"}"


def test_a_clients_own_parameters_never_reach_a_leg() -> None:
    forged = b'{"kv_transfer_params":{"do_remote_prefill":true},"prompt":"x"}'
    assert b'"do_remote_prefill":true' not in prefill_leg_body(forged, Api.COMPLETIONS)
    assert decode_leg_body(forged, b'{"a":1}') == b'{"kv_transfer_params":{"a":1},"prompt":"x"}'


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"kv_transfer_params":{"do_remote_prefill":true},"prompt":"x"}', b'{"prompt":"x"}'),
        (b'{"\\u006bv_transfer_params":{"do_remote_prefill":true},"prompt":"x"}', b'{"prompt":"x"}'),
        (b'{"prompt":"x","kv_transfer_params":1,"kv_transfer_params":{}}', b'{"prompt":"x"}'),
        (b'{"prompt":"x","ec_transfer_params":{"a":1}}', b'{"prompt":"x"}'),
        (b'{"vllm_xargs":{"kv_transfer_params":"x","a":0.10}}', b'{"vllm_xargs":{"a":0.10}}'),
        (b'{"vllm_xargs":7,"kv_transfer_params":1}', b'{"vllm_xargs":7}'),
        (b'{"messages":[{"kv_transfer_params":1}]}', b'{"messages":[{"kv_transfer_params":1}]}'),
    ],
)
def test_what_a_client_could_steer_transfers_by_is_taken_out(body: bytes, left: bytes) -> None:
    assert strip_transfer_params(body) == left
    assert not parse_request(Api.COMPLETIONS, "/v1/completions", left).has_kv_transfer_params


@pytest.mark.parametrize(
    ("answer", "params"),
    [
        (b'{"id":"c","kv_transfer_params":{"remote_port": 5701 ,"x":[[1]]}}', b'{"remote_port": 5701 ,"x":[[1]]}'),
        (b'{"kv_transfer_params":null}', None),
        (b'{"kv_transfer_params":{}}', None),
        (b'{"kv_transfer_params":[1]}', None),
        (b'{"choices":[]}', None),
        (b'{"kv_transfer_params":{"a":1}', None),
        (b"[]", None),
        (b"", None),
        (b'{"a":' + b"[" * 20_000, None),
    ],
)
def test_the_hand_off_is_whole_or_nothing(answer: bytes, params: bytes | None) -> None:
    assert hand_off(answer) == params


def test_usage_is_asked_for_beside_the_clients_other_stream_options() -> None:
    assert ask_for_usage(b'{"stream":true}') == b'{"stream":true,"stream_options":{"include_usage":true}}'
    assert (
        ask_for_usage(b'{"stream_options":{"continuous_usage_stats":true, "include_usage":false}}')
        == b'{"stream_options":{"continuous_usage_stats":true, "include_usage":true}}'
    )
    assert ask_for_usage(b'{"stream_options":null}') == b'{"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize(
    ("api", "fields", "n", "can"),
    [
        (Api.CHAT, {"messages": []}, 1, True),
        (Api.CHAT, {"messages": []}, 2, False),
        (Api.COMPLETIONS, {"prompt": "x"}, 1, True),
        (Api.COMPLETIONS, {"prompt": [1, 2, 3]}, 1, True),
        (Api.COMPLETIONS, {"prompt": [[1, 2, 3]]}, 1, True),
        (Api.COMPLETIONS, {"prompt": ["a", "b"]}, 1, False),
        (Api.COMPLETIONS, {"prompt": [[1], [2]]}, 1, False),
        (Api.OTHER, {}, 1, False),
    ],
)
def test_only_one_prompt_with_one_choice_can_be_split(api: Api, fields: dict[str, Any], n: int, can: bool) -> None:
    assert can_disaggregate(api, fields, n) is can


_fixtures = os.environ.get("KVROUTER_FIXTURES")


@pytest.mark.skipif(not _fixtures, reason="KVROUTER_FIXTURES names no folder of recorded engine exchanges")
def test_recorded_exchanges_hand_over_what_the_decode_leg_was_given() -> None:
    recorded = json.loads((Path(str(_fixtures)) / "pd" / "nixl_roles_300.json").read_text())
    steps = {step["step"]: step for step in recorded}
    answer = json.dumps(steps["prefill"]["response"]).encode()
    params = hand_off(answer)
    assert params is not None
    decode = steps["decode"]["request"]
    body = json.dumps({key: value for key, value in decode.items() if key != "kv_transfer_params"}).encode()
    assert json.loads(decode_leg_body(body, params)) == decode
    prefill = json.loads(prefill_leg_body(body, Api.COMPLETIONS))
    assert prefill["kv_transfer_params"] == steps["prefill"]["request"]["kv_transfer_params"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"token_ids":[1],"kv_transfer_params":{"a":1}}',
        b'{"token_ids":[1],"vllm_xargs":{"kv_transfer_params":1}}',
        b'{"token_ids":[1],"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}',
        b'{"token_ids":[1],"sampling_params":{"extra_args":{"ec_transfer_params":{"a":1}}}}',
        b'{"token_ids":[1],"sampling_params":{"extra_args":{"\\u006bv_transfer_params":1}}}',
        b'{"sampling_params":{},"token_ids":[1],"sampling_params":{"extra_args":{"kv_transfer_params":1}}}',
        b'{"token_ids":[1],"sampling_params":{"extra_args":{},"extra_args":{"kv_transfer_params":1}}}',
    ],
)
def test_no_door_of_generate_lets_transfer_parameters_through(body: bytes) -> None:
    stripped = strip_generate_params(body)
    assert b"transfer_params" not in msgspec.json.encode(msgspec.json.decode(stripped))
    assert msgspec.json.decode(stripped)["token_ids"] == [1]


@pytest.mark.parametrize(
    "body",
    [
        b'{"token_ids":[1], "sampling_params":{"max_tokens" : 3, "extra_args":{"mine": 0.10}}}',
        b'{"token_ids":[1],"sampling_params":null}',
        b'{"token_ids":[1],"sampling_params":{"extra_args":[1]}}',
    ],
)
def test_what_steers_no_transfer_stays_byte_for_byte(body: bytes) -> None:
    assert strip_generate_params(body) == body
