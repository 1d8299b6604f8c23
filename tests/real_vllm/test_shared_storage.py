"""Prefill on one engine, decode on another, the KV in a folder that both read: no parameters pass between the legs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real_vllm.engines import BLOCK, Engine
from tests.real_vllm.routers import client_of, exact, router_over
from tests.real_vllm.workload import COMPLETIONS, completion, numbers


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
async def test_the_decode_engine_reads_what_the_prefill_engine_wrote(
    shared_storage: list[Engine], stream: bool
) -> None:
    prefill, decode = shared_storage
    body = completion(numbers(31 + stream, 200), max_tokens=12, stream=stream)
    name = "always-disagg-pd-decider"
    flags: dict[str, Any] = {"scheduling__plugins": [{"type": name}], "scheduling__decider": name}
    async with router_over(prefill=[prefill], decode=[decode], **flags) as router, client_of(router) as client:
        await exact(router)
        before = decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        answer = await client.post(COMPLETIONS, json=body)
        assert answer.status_code == 200, answer.text
        moved = decode.metric("vllm:prompt_tokens_by_source_total", source="external_kv_transfer") - before
        assert moved >= 200 // BLOCK * BLOCK - BLOCK
