"""A real router over simulated engines, everything over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Any

import httpx
import msgspec
import pytest

from loadtest.simulator import RunningEngine
from loadtest.simulator.settings import EngineConfig, Faults
from router.core import Endpoint
from router.pool.spec import EndpointSpec
from router.upstream.relay import Relay
from tests.support.router import RunningRouter, client_of, endpoints, running_router
from tests.support.simulator import FAST, engines, prefill_and_decode

CHAT = "/v1/chat/completions"


def chat(text: str | list[dict[str, str]] = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "sim-model", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}


async def ledger(client: httpx.AsyncClient, engine: RunningEngine, request_id: str) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False, verify=False) as direct:
        answer = await direct.get(f"{engine.url}/sim/requests/{request_id}")
        answer.raise_for_status()
        return dict(answer.json())


async def eventually(condition: Any, *, within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def idle(router: RunningRouter) -> bool:
    return router.app.inflight.snapshot() == {} and router.app.lifecycle.active == 0


async def test_two_hundred_concurrent_streams_are_byte_identical_to_what_the_engines_sent() -> None:
    async with (
        prefill_and_decode(2, 2) as (prefill, decode),
        running_router(
            endpoints((), prefill, decode),
            scheduling__plugins=[{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 64}}],
            scheduling__decider="prefix-based-pd-decider",
        ) as router,
    ):
        relay = Relay()
        target = Endpoint(id="router", url=router.url)

        async def one(number: int) -> tuple[str, str, str, bool]:
            body = json.dumps(
                chat(f"question {number} " * (1 + number % 2 * 120), stream=True, max_tokens=100, ignore_eos=True)
            )
            headers = [(b"content-type", b"application/json"), (b"x-request-id", b"r%d" % number)]
            answer = await relay.open(target, b"POST", CHAT, headers, body.encode())
            assert answer.status == 200
            digest, last = hashlib.sha256(), b""
            while piece := await answer.read():
                digest.update(piece)
                last = piece
            assert last.endswith(b"data: [DONE]\n\n")
            await answer.close()
            fields = dict(answer.headers)
            apart = b"x-kvrouter-prefill-endpoint" in fields
            return f"r{number}", fields[b"x-kvrouter-endpoint"].decode(), digest.hexdigest(), apart

        served = await asyncio.gather(*(one(number) for number in range(200)))
        await relay.aclose()
        by_id = {router.endpoint_of(engine): engine for engine in decode}
        async with httpx.AsyncClient(trust_env=False, verify=False) as direct:
            for request_id, endpoint, digest, _ in served:
                entry = (await direct.get(f"{by_id[endpoint].url}/sim/requests/{request_id}")).json()
                assert (entry["sha256"], entry["status"]) == (digest, 200)
        assert {endpoint for _, endpoint, _, _ in served} == set(by_id)
        assert router.app.inflight.snapshot() == {}
        assert sum(apart for *_, apart in served) == 100


async def test_the_second_turn_goes_where_its_prefix_is_and_is_served_from_cache() -> None:
    async with engines(4) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        first = await client.post(CHAT, json=chat("tell me a story about blocks " * 20))
        answer = first.json()
        body = chat("tell me a story about blocks " * 20)
        body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "and then?"}]
        second = await client.post(CHAT, json=body)
        assert second.headers["x-kvrouter-endpoint"] == first.headers["x-kvrouter-endpoint"]
        cached = second.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= 100
        assert int(second.headers["x-kvrouter-matched-tokens"]) == cached


async def test_the_routers_tokens_are_the_engines() -> None:
    """The simulator renders and tokenizes on its own: equal counts and equal cache hits mean equal ids."""
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        bodies = [
            chat("plain text " * 30),
            chat([{"type": "text", "text": "part one " * 20}, {"type": "text", "text": "part two"}]),
            chat("with tools " * 30, tools=[tool]),
        ]
        for body in bodies:
            await client.post(CHAT, json=body)
            again = await client.post(CHAT, json=body)
            cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0
            assert int(again.headers["x-kvrouter-matched-tokens"]) == cached


@pytest.mark.parametrize("stream", [False, True])
async def test_a_long_prompt_is_prefilled_elsewhere_and_a_short_one_is_not(stream: bool) -> None:
    async with (
        prefill_and_decode(2, 2) as (prefill, decode),
        running_router(
            endpoints((), prefill, decode),
            scheduling__plugins=[{"type": "prefix-based-pd-decider", "parameters": {"nonCachedTokens": 64}}],
            scheduling__decider="prefix-based-pd-decider",
        ) as router,
        client_of(router) as client,
    ):
        long = await client.post(CHAT, json=chat("a long story " * 60, stream=stream))
        assert long.status_code == 200
        assert long.headers["x-kvrouter-prefill-endpoint"] in {router.endpoint_of(engine) for engine in prefill}
        assert long.headers["x-kvrouter-endpoint"] in {router.endpoint_of(engine) for engine in decode}
        short = await client.post(CHAT, json=chat("hi", stream=stream))
        assert "x-kvrouter-prefill-endpoint" not in short.headers
        page = (await client.get("/metrics")).text
        assert 'kvrouter_dispatches_total{endpoint="' in page
        assert 'leg="prefill"' in page
        assert 'leg="decode"' in page


async def test_a_client_cannot_steer_kv_transfer() -> None:
    """The simulated engine dies of a forged hand-off, as a real one does."""
    forgeries: tuple[dict[str, Any], ...] = (
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"vllm_xargs": {"kv_transfer_params": {}}},
    )
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for forged in forgeries:
            answer = await client.post(CHAT, json=chat(**forged))
            assert answer.status_code == 200
        assert not running[0].dead.is_set()


async def test_an_engine_that_dies_costs_no_client_its_answer() -> None:
    async with engines(3) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        await running[0].kill()
        answers = await asyncio.gather(*(client.post(CHAT, json=chat(f"q {number}")) for number in range(30)))
        assert {answer.status_code for answer in answers} == {200}
        assert router.endpoint_of(running[0]) not in {answer.headers["x-kvrouter-endpoint"] for answer in answers}


async def test_a_busy_engines_503_goes_to_another() -> None:
    busy = msgspec.structs.replace(FAST, faults=Faults(busy=True))
    async with (
        engines(busy, 1) as running,
        running_router(endpoints(running)) as router,
        client_of(router) as client,
    ):
        answers = [await client.post(CHAT, json=chat(f"q {number}")) for number in range(10)]
        assert {answer.status_code for answer in answers} == {200}


async def test_a_stream_that_the_engine_cuts_is_visibly_cut() -> None:
    cutting = msgspec.structs.replace(FAST, faults=Faults(cut_after_chunks=3, cut_with="rst"))
    async with engines(cutting) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        received = b""
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", CHAT, json=chat(stream=True, ignore_eos=True)) as answer:
                async for piece in answer.aiter_raw():
                    received += piece
        last = received.strip().split(b"\n\n")[-1]
        assert "error" in json.loads(last.removeprefix(b"data: "))
        assert b"[DONE]" not in received
        await eventually(lambda: idle(router))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_stops_the_engines_work(stream: bool) -> None:
    slow = EngineConfig(profile="demo")
    async with engines(slow) as running, running_router(endpoints(running)) as router:
        body = chat(stream=stream, max_tokens=4000, ignore_eos=True)
        async with client_of(router) as client:
            asking = asyncio.create_task(client.post(CHAT, json=body, headers={"x-request-id": "gone"}))
            await eventually(lambda: router.app.inflight.snapshot())
            await asyncio.sleep(0.2)
            asking.cancel()
            await asyncio.wait([asking])
        await eventually(lambda: idle(router))
        async with client_of(router) as client:
            async with asyncio.timeout(5):
                while not (await ledger(client, running[0], "gone"))["aborted"]:
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "sim-model", "prompt": "text"},
        {"model": "sim-model", "prompt": ["one", "two"]},
        {"model": "sim-model", "prompt": [10, 11, 12]},
        {"model": "sim-model", "prompt": [[10, 11], [12]]},
        {"prompt": "no model"},
    ],
)
async def test_completions_take_every_form_of_prompt(body: dict[str, Any]) -> None:
    async with engines(2) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        answer = await client.post("/v1/completions", json={**body, "max_tokens": 3})
        assert answer.status_code == 200
        assert answer.json()["object"] == "text_completion"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": "sim-model", "input": "text"}),
        ("/v1/rerank", {"model": "sim-model", "query": "q", "documents": ["a", "b"]}),
        ("/v1/score", {"model": "sim-model", "text_1": "q", "text_2": ["a"]}),
        ("/pooling", {"model": "sim-model", "input": "text"}),
        ("/classify", {"model": "sim-model", "input": "text"}),
        ("/tokenize", {"model": "sim-model", "prompt": "text"}),
        ("/detokenize", {"model": "sim-model", "tokens": [10, 11]}),
        ("/v1/messages", {"model": "sim-model", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages/count_tokens", {"model": "sim-model", "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"model": "sim-model", "input": "hi", "max_output_tokens": 4}),
        ("/v1/audio/speech", {"model": "sim-model", "input": "hi", "voice": "a"}),
    ],
)
async def test_every_other_path_reaches_an_engine(path: str, body: dict[str, Any]) -> None:
    async with engines(2) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        assert (await client.post(path, json=body)).status_code == 200


async def test_an_upload_reaches_the_engine_that_serves_its_model() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        upload = {"file": ("a.wav", b"RIFF0000WAVE", "audio/wav")}
        answer = await client.post("/v1/audio/transcriptions", files=upload, data={"model": "sim-model"})
        assert answer.status_code == 200
        unknown = await client.post("/v1/audio/transcriptions", files=upload, data={"model": "nobody"})
        assert unknown.status_code == 404


async def test_a_stored_response_is_found_with_its_holder() -> None:
    async with engines(3) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for number in range(3):
            made = await client.post("/v1/responses", json={"model": "sim-model", "input": f"hi {number}"})
            found = await client.get(f"/v1/responses/{made.json()['id']}")
            assert found.status_code == 200
            assert found.json()["id"] == made.json()["id"]


async def test_models_are_merged_with_aliases_and_adapters() -> None:
    one = msgspec.structs.replace(FAST, aliases=("alias",), loras=("lora-a",))
    async with engines(one, 1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        listed = [card["id"] for card in (await client.get("/v1/models")).json()["data"]]
        assert listed == ["sim-model", "alias", "lora-a"]
        for model in listed:
            assert (await client.get(f"/v1/models/{model}")).json()["id"] == model
            assert (await client.post(CHAT, json={**chat(), "model": model})).status_code == 200
        assert (await client.get("/v1/models/nobody")).status_code == 404
        assert (await client.post(CHAT, json={**chat(), "model": "nobody"})).json()["error"][
            "code"
        ] == "model_not_found"


async def test_an_adapter_loaded_later_is_found_at_its_first_request() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        async with httpx.AsyncClient(trust_env=False, verify=False) as direct:
            load = {"lora_name": "late", "lora_path": "/adapters/late"}
            (await direct.post(f"{running[0].url}/v1/load_lora_adapter", json=load)).raise_for_status()
        assert (await client.post(CHAT, json={**chat(), "model": "late"})).status_code == 200


async def test_an_engines_refusal_passes_byte_for_byte() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        bad = {**chat(), "temperature": -1}
        through = await client.post(CHAT, json=bad)
        async with httpx.AsyncClient(trust_env=False, verify=False) as direct:
            straight = await direct.post(running[0].url + CHAT, json=bad)
        assert through.status_code == straight.status_code == 400
        assert through.content == straight.content


async def test_engines_behind_a_key_get_their_own() -> None:
    locked = msgspec.structs.replace(FAST, api_key="engine-key")
    async with engines(locked) as running:
        spec = [{"url": running[0].url, "api_key": "engine-key"}]
        async with running_router(spec, server__api_keys=["client-key"]) as router, client_of(router) as client:
            assert (await client.post(CHAT, json=chat())).status_code == 401
            client.headers["authorization"] = "Bearer client-key"
            assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_usage_is_known_when_the_client_does_not_ask_and_does_not_see_it() -> None:
    async with (
        engines(1) as running,
        running_router(endpoints(running), usage__inject_stream_usage=True) as router,
        client_of(router) as client,
    ):
        answer = await client.post(CHAT, json=chat(stream=True))
        assert "usage" not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        assert "kvrouter_output_tokens_total 8.0" in (await client.get("/metrics")).text


async def test_health_readiness_and_documentation_need_no_network() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        for path in ("/health", "/ready", "/metrics"):
            assert (await client.head(path)).status_code == 200
        page = (await client.get("/docs")).text
        assert "https://" not in page
        schema = (await client.get("/openapi.json")).json()
        assert CHAT in schema["paths"]
        await running[0].kill()
        await eventually(lambda: router.app.pool.snapshot()[0].health.value == "unhealthy", within_s=20)
        assert (await client.get("/ready")).status_code == 503
        assert (await client.post(CHAT, json=chat())).status_code == 503


async def test_an_endpoint_that_leaves_takes_its_metrics_with_it() -> None:
    async with engines(2) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for number in range(6):
            await client.post(CHAT, json=chat(f"q {number}", stream=True))
        gone = router.endpoint_of(running[0])
        assert f'endpoint="{gone}"' in (await client.get("/metrics")).text
        router.app.pool.set_endpoints([EndpointSpec(url=running[1].url)])
        assert f'endpoint="{gone}"' not in (await client.get("/metrics")).text


async def test_browsers_are_let_in_only_from_configured_origins() -> None:
    async with (
        engines(1) as running,
        running_router(endpoints(running), server__cors_origins=["https://app.example"]) as router,
        client_of(router) as client,
    ):
        asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
        preflight = await client.options(CHAT, headers=asked)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        answer = await client.post(CHAT, json=chat(), headers={"origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_running_streams_finish_when_the_router_is_told_to_end() -> None:
    async with (
        engines(EngineConfig(profile="demo")) as running,
        running_router(endpoints(running)) as router,
        client_of(router) as client,
    ):
        body = chat(stream=True, max_tokens=60, ignore_eos=True)
        asking = asyncio.create_task(client.post(CHAT, json=body))
        await eventually(lambda: router.app.inflight.snapshot())
        router.process.stop()
        answer = await asking
        assert answer.text.endswith("data: [DONE]\n\n")
