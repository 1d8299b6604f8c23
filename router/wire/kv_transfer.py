"""The bodies of a disaggregated request's two legs, and the hand-off between them (vLLM's NIXL connector). PURE.

The prefill leg is the client's body reduced to one token and not streamed, asking the engine to keep the blocks for a
remote decode; its answer's ``kv_transfer_params`` go verbatim into the decode leg's otherwise original body.
Source: vLLM 0.32's NixlConnector as observed, and llm-d's sidecar for the explicit nulls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from router.core import Api
from router.wire.splice import SpliceError, raw_value, splice

_PARAMS = "kv_transfer_params"
_FOREIGN = (_PARAMS, "ec_transfer_params")
_ASK_REMOTE_DECODE = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)

# How each API says "one token"; min_tokens stops an early end-of-sequence from emptying the leg.
_ONE_TOKEN: dict[Api, dict[str, bytes]] = {
    Api.CHAT: {"max_tokens": b"1", "max_completion_tokens": b"1", "min_tokens": b"1"},
    Api.COMPLETIONS: {"max_tokens": b"1", "min_tokens": b"1"},
    Api.RESPONSES: {"max_output_tokens": b"1"},
}
"""Not ``/v1/messages``: its answers carry no ``kv_transfer_params``, so there is nothing to hand over."""


def can_disaggregate(api: Api, fields: Mapping[str, Any], n: int = 1) -> bool:
    """Whether this request can be split into two legs: one prompt, one choice.

    An answer carries one ``kv_transfer_params``, so a batch of prompts or several choices have no hand-off each.
    `fields` are `router.wire.openai.Parsed.fields`.
    """
    if api not in _ONE_TOKEN or n != 1:
        return False
    prompt = fields.get("prompt")
    return not (type(prompt) is list and len(prompt) > 1 and type(prompt[0]) in (list, str))


def prefill_leg_body(body: bytes, api: Api) -> bytes:
    """The client's body as the prefill leg: one token, not streamed, blocks kept for a remote decode.

    Raises `SpliceError` for bytes that `parse_request` would have refused, KeyError for an API that cannot be split.
    """
    asked = {**_ONE_TOKEN[api], "stream": b"false", _PARAMS: _ASK_REMOTE_DECODE}
    return splice(body, remove=("stream_options",), set=asked)


def decode_leg_body(body: bytes, params: bytes) -> bytes:
    """The client's body with the prefill engine's `params` (`hand_off`), everything else byte for byte."""
    return splice(body, set={_PARAMS: params})


def hand_off(prefill_response: bytes) -> bytes | None:
    """The ``kv_transfer_params`` of a prefill leg's answer as raw JSON; None when it holds none.

    Without them the decode leg must go as an ordinary request: partial parameters hang an engine.
    """
    try:
        answer = _decoder.decode(prefill_response)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    params = answer.kv_transfer_params
    if params is msgspec.UNSET:
        return None
    raw = bytes(params)
    return raw if raw.startswith(b"{") and raw != b"{}" else None


def strip_transfer_params(body: bytes) -> bytes:
    """`body` without anything a client could steer an engine's KV transfer by.

    A forged ``do_remote_prefill`` kills a decode engine, and ``vllm_xargs`` reach the same place. Raises `SpliceError`.
    """
    extra = raw_value(body, "vllm_xargs")
    if extra is None:
        return splice(body, remove=_FOREIGN)
    try:
        return splice(body, remove=_FOREIGN, set={"vllm_xargs": splice(extra, remove=_FOREIGN)})
    except SpliceError:
        return splice(body, remove=_FOREIGN)


def strip_generate_params(body: bytes) -> bytes:
    """`strip_transfer_params` for ``/inference/v1/generate``, whose sampling parameters are a third door.

    Raises `SpliceError`.
    """
    body = strip_transfer_params(body)
    sampling = raw_value(body, "sampling_params")
    if sampling is None or not sampling.startswith(b"{"):
        return body
    extra = raw_value(sampling, "extra_args")
    if extra is None or not extra.startswith(b"{"):
        return body
    return splice(body, set={"sampling_params": splice(sampling, set={"extra_args": splice(extra, remove=_FOREIGN)})})


def ask_for_usage(body: bytes) -> bytes:
    """A streaming body with ``stream_options.include_usage`` switched on, other stream options kept.

    The extra chunk this causes is the caller's to take out again. Raises `SpliceError`.
    """
    options = raw_value(body, "stream_options")
    if options is None or not options.startswith(b"{"):
        options = b"{}"
    return splice(body, set={"stream_options": splice(options, set={"include_usage": b"true"})})


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decoder = msgspec.json.Decoder(_Answer)
