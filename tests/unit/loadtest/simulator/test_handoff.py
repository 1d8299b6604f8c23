"""Prefill on one engine, decode on another: what is handed over, what is reused, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from loadtest.simulator import RunningEngine, start_engines
from loadtest.simulator.transfer import FatalParams, HandOff, IncompleteParams, parse
from tests.support.recordings import FOLDER, events, in_order
from tests.support.simulator import FAST, close, engines, http, prefill_and_decode

PROMPT = list(range(200))
RECORDED = json.loads((FOLDER / "pd" / "nixl_roles_300.json").read_text())


async def post(engine: RunningEngine, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with http(engine.url, timeout=30) as client:
        return await client.post("/v1/completions", json=body, headers=headers)


async def prefill(engine: RunningEngine) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    answer: dict[str, Any] = (await post(engine, body, **{"X-Request-Id": "pdreq-300"})).json()
    return answer


def source(engine: RunningEngine) -> tuple[int, int, int]:
    """(computed, found here, brought from elsewhere) prompt tokens of an engine."""
    counters = engine.engine.ranks[0].core.counters
    return counters.local_compute, counters.local_hits, counters.transferred


async def test_a_prefill_leg_answers_as_recorded() -> None:
    async with prefill_and_decode(block_size=32) as ((first,), _):
        answer = await prefill(first)
    known = RECORDED[0]["response"]
    assert in_order(answer) == in_order(known)
    params = answer["kv_transfer_params"]
    assert len(params["remote_block_ids"][0]) == len(known["kv_transfer_params"]["remote_block_ids"][0])
    assert params["remote_num_tokens"] == 200
    assert params["remote_request_id"].startswith("cmpl-pdreq-300-0-")
    assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", first.port)


async def test_a_decode_leg_reads_the_prompt_and_gives_the_answer_of_a_lone_engine() -> None:
    async with prefill_and_decode() as ((first,), (second,)), engines(1) as (alone,):
        handed = await prefill(first)
        assert first.engine.ranks[0].core.cache.used_fraction > 0
        leg = await post(
            second, {"prompt": PROMPT, "max_tokens": 8, "kv_transfer_params": handed["kv_transfer_params"]}
        )
        whole = await post(alone, {"prompt": PROMPT, "max_tokens": 8})
        assert first.engine.ranks[0].core.cache.used_fraction == 0
    assert leg.json()["choices"][0]["text"] == whole.json()["choices"][0]["text"]
    assert leg.json()["choices"][0]["text"].startswith(handed["choices"][0]["text"])
    assert in_order(leg.json()["usage"]) == in_order(RECORDED[1]["response"]["usage"])
    assert source(first) == (200, 0, 0)
    assert source(second) == (0, 0, 200)


async def test_what_the_decoder_holds_already_is_not_brought_again() -> None:
    async with prefill_and_decode() as ((first,), (second,)):
        await post(second, {"prompt": PROMPT[:160], "max_tokens": 1})
        handed = await prefill(first)
        await post(second, {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed["kv_transfer_params"]})
    assert source(second) == (160, 160, 40)


async def test_a_streaming_prefill_leg_returns_no_hand_off() -> None:
    async with prefill_and_decode() as ((first,), _):
        body = {"prompt": PROMPT, "max_tokens": 1, "stream": True, "kv_transfer_params": {"do_remote_decode": True}}
        answer = await post(first, body)
    assert not any("kv_transfer_params" in event for event in events(answer.text) if isinstance(event, dict))


async def test_a_hand_off_is_read_once() -> None:
    async with prefill_and_decode() as ((first,), (second,)):
        handed = (await prefill(first))["kv_transfer_params"]
        body = {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed}
        await post(second, body)
        await post(second, {**body, "cache_salt": "so that nothing is found here"})
        assert source(second) == (200, 0, 200)
        assert second.engine.ranks[0].stats.failed_transfers == 1


async def test_an_unread_hand_off_is_dropped_when_its_lease_ends() -> None:
    async with prefill_and_decode(lease_s=0.05) as ((first,), (second,)):
        handed = (await prefill(first))["kv_transfer_params"]
        await asyncio.sleep(0.1)
        answer = await post(second, {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed})
        assert first.engine.ranks[0].core.cache.used_fraction == 0
    assert answer.status_code == 200
    assert source(second) == (200, 0, 0)


@pytest.mark.parametrize(("policy", "status"), [("recompute", 200), ("fail", 500)])
async def test_an_unreachable_prefiller_costs_a_recomputation_or_an_error(policy: str, status: int) -> None:
    async with prefill_and_decode(kv_load_failure_policy=policy) as ((first,), (second,)):
        handed = (await prefill(first))["kv_transfer_params"]
        await first.kill()
        answer = await post(second, {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed})
        assert second.engine.ranks[0].core.cache.used_fraction == 0
    assert answer.status_code == status


async def test_engines_that_do_not_know_each_other_hand_over_by_http() -> None:
    first = (await start_engines([FAST]))[0]
    second = (await start_engines([FAST]))[0]
    try:
        handed = (await prefill(first))["kv_transfer_params"]
        await post(second, {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed})
        assert source(second) == (0, 0, 200)
        assert first.engine.ranks[0].core.cache.used_fraction == 0
    finally:
        await close([first, second])


async def test_a_client_that_leaves_during_the_transfer_frees_the_blocks() -> None:
    async with prefill_and_decode(transfer_base_ms=60_000.0) as ((first,), (second,)):
        handed = (await prefill(first))["kv_transfer_params"]
        core = second.engine.ranks[0].core
        leg = asyncio.create_task(post(second, {"prompt": PROMPT, "max_tokens": 2, "kv_transfer_params": handed}))
        while not core.num_loading:
            await asyncio.sleep(0.01)
        leg.cancel()
        await asyncio.gather(leg, return_exceptions=True)
        while core.num_loading:
            await asyncio.sleep(0.01)
        assert core.cache.used_fraction == 0


async def test_a_lone_do_remote_prefill_kills_the_engine() -> None:
    async with engines(1) as (engine,):
        answer = await post(engine, {"prompt": PROMPT, "kv_transfer_params": {"do_remote_prefill": True}})
        assert answer.status_code == 500
        await asyncio.wait_for(engine.dead.wait(), 10)
        with pytest.raises(httpx.TransportError):
            await post(engine, {"prompt": PROMPT})


async def test_an_incomplete_hand_off_is_never_answered() -> None:
    async with engines(1) as (engine,):
        params = {"do_remote_prefill": True, "remote_engine_id": "x"}
        async with http(engine.url, timeout=0.2) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post("/v1/completions", json={"prompt": PROMPT, "kv_transfer_params": params})


async def test_a_sturdy_engine_ignores_what_kills_others() -> None:
    async with engines(FAST, fragile=False) as (engine,):
        for params in ({"do_remote_prefill": True}, {"do_remote_prefill": True, "remote_engine_id": "x"}):
            assert (await post(engine, {"prompt": PROMPT, "kv_transfer_params": params})).status_code == 200


def test_hand_offs_are_read_from_what_prefillers_return() -> None:
    params = RECORDED[0]["response"]["kv_transfer_params"]
    assert parse(params) == HandOff("prefill-0", params["remote_request_id"], "127.0.0.1", 5701)
    assert parse(None) is None
    assert parse({"do_remote_decode": True}) is None
    with pytest.raises(FatalParams):
        parse({"do_remote_prefill": True})
    with pytest.raises(IncompleteParams):
        parse({**params, "remote_port": None})
    with pytest.raises(IncompleteParams):
        parse({**params, "remote_port": "there"})
