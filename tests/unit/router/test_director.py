from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from router.core import Api, Health, Role
from router.errors import ModelNotFound, NoEndpoint, Overloaded, UpstreamFailed, UpstreamTimeout
from router.observability.events import Outcome
from router.ports import CUT, UpstreamBroken, UpstreamError, UpstreamOrphaned, UpstreamRefused, UpstreamSilent
from router.retry_budget import RetryBudget
from tests.support.journey import (
    HAND_OFF,
    SPOKEN,
    SSE,
    Engine,
    FakeReply,
    FakeResponse,
    FakeTokenization,
    Sent,
    World,
    answer,
    endpoint,
    prefilled,
    request,
    stream,
)

P, D = Role.PREFILL, Role.DECODE


async def test_an_engines_stream_reaches_the_client_byte_for_byte_with_who_served_it() -> None:
    world = World([endpoint("a")], {"a": lambda _: stream("x", "y")}, held={"a": 3})
    reply = await world.serve()
    assert reply.status == 200
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert reply.headers[b"x-kvrouter-endpoint"] == b"a"
    assert reply.headers[b"x-kvrouter-matched-tokens"] == b"48"
    assert reply.ended
    (ended,) = world.recorder.ended
    assert (ended.outcome, ended.endpoint_id, ended.output_tokens, ended.matched_tokens) == (Outcome.OK, "a", 2, 48)


async def test_the_body_goes_upstream_as_it_came_with_the_request_id_and_the_endpoints_own_key() -> None:
    world = World([endpoint("a", api_key="k1", rank=1)], {"a": lambda _: stream("x")})
    asked = request(headers=((b"authorization", b"Bearer clients"), (b"x-mine", b"1")))
    await world.serve(asked)
    (sent,) = world.upstream.sent
    assert sent.body == asked.body
    assert sent.headers == {
        b"x-mine": b"1",
        b"x-request-id": b"r1",
        b"authorization": b"Bearer k1",
        b"x-data-parallel-rank": b"1",
    }


async def test_the_chosen_chain_is_speculated_before_the_answer() -> None:
    world = World([endpoint("a")], {"a": lambda _: stream("x")})
    await world.serve()
    assert world.index.speculated == ["a"]


async def test_an_endpoint_that_is_back_in_a_moment_serves_what_nobody_else_could() -> None:
    back = endpoint("b")
    away = msgspec.structs.replace(back, health=Health.UNHEALTHY)

    def refuse(_: object) -> UpstreamRefused:
        asyncio.get_running_loop().call_later(0.02, lambda: world.pool.states.__setitem__(1, back))
        return UpstreamRefused("no")

    world = World([endpoint("a"), away], {"a": refuse, "b": lambda _: stream("x")})
    reply = await world.serve()
    assert (reply.status, reply.headers[b"x-kvrouter-endpoint"]) == (200, b"b")
    assert world.inflight.snapshot() == {}


@pytest.mark.parametrize("error", [UpstreamRefused("no"), UpstreamBroken("cut")])
async def test_an_endpoint_that_fails_before_its_first_byte_is_replaced_by_the_next(error: UpstreamError) -> None:
    world = World([endpoint("a"), endpoint("b")], {"a": lambda _: error, "b": lambda _: stream("x")}, held={"a": 5})
    reply = await world.serve()
    assert reply.headers[b"x-kvrouter-endpoint"] == b"b"
    assert world.pool.failed == ["a"]
    assert [event.kind for event in world.recorder.failed] == [error.kind]
    assert world.inflight.snapshot() == {}


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_busy_engine_is_replaced_but_not_held_against_it(status: int) -> None:
    world = World(
        [endpoint("a"), endpoint("b")], {"a": lambda _: answer({}, status), "b": lambda _: stream("x")}, held={"a": 5}
    )
    assert (await world.serve()).status == 200
    assert world.pool.failed == []


async def test_the_last_engines_refusal_is_the_clients_answer() -> None:
    world = World([endpoint("a")], {"a": lambda _: answer({"error": {"message": "busy"}}, 503)})
    reply = await world.serve()
    assert (reply.status, json.loads(reply.body)["error"]["message"]) == (503, "busy")
    assert world.recorder.ended[0].outcome is Outcome.ENGINE_ERROR


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ([("a", Health.DRAINING, Role.BOTH), ("b", Health.DRAINING, Role.DECODE)], "Every endpoint .* is drained"),
        ([("a", Health.DRAINING, Role.BOTH), ("p", Health.HEALTHY, Role.PREFILL)], "Every endpoint .* is drained"),
        ([("a", Health.DRAINING, Role.BOTH), ("b", Health.UNHEALTHY, Role.BOTH)], "of 2, 1 drained, the others down"),
        ([("a", Health.UNHEALTHY, Role.BOTH), ("p", Health.DRAINING, Role.PREFILL)], "serves this model is healthy"),
        ([("a", Health.UNHEALTHY, Role.BOTH), ("p", Health.HEALTHY, Role.PREFILL)], "only prefills"),
    ],
)
async def test_where_engines_are_drained_a_request_is_told_so(fleet: list[tuple[str, Health, Role]], why: str) -> None:
    world = World([endpoint(name, role, health=health) for name, health, role in fleet], {})
    with pytest.raises(NoEndpoint, match=why) as told:
        await world.serve()
    assert (told.value.status, told.value.retry_after_s) == (503, 1)


@pytest.mark.parametrize("came_back", ["before the decision, as one on trial", "while the first was asked"])
async def test_an_error_to_ask_another_for_is_not_the_clients_while_anybody_else_could_be_asked(came_back: str) -> None:
    on_trial = msgspec.structs.replace(endpoint("b"), on_trial=True)
    away = msgspec.structs.replace(on_trial, health=Health.UNHEALTHY)
    meanwhile = came_back.startswith("while")

    def fail(_: object) -> FakeResponse:
        if meanwhile:
            world.pool.states[1] = on_trial
        return answer({"error": {"message": "down"}}, 502)

    engines = {"a": fail, "b": lambda _: stream("x")}
    world = World([endpoint("a"), away if meanwhile else on_trial], engines)
    busy = world.inflight.acquire("b", prefill_tokens=0, tokens=0)
    reply = await world.serve()
    assert (reply.status, reply.headers[b"x-kvrouter-endpoint"]) == (200, b"b")
    busy.release()
    assert world.inflight.snapshot() == {}


async def test_a_client_error_of_the_engine_passes_through_and_is_not_tried_elsewhere() -> None:
    world = World([endpoint("a"), endpoint("b")], {name: lambda _: answer({"error": {}}, 400) for name in "ab"})
    reply = await world.serve()
    assert reply.status == 400
    assert len(world.upstream.sent) == 1
    assert world.pool.failed == []
    assert world.recorder.ended[0].outcome is Outcome.CLIENT_ERROR


async def test_attempts_are_bounded() -> None:
    names = [f"e{number}" for number in range(6)]
    world = World([endpoint(name) for name in names], {name: lambda _: UpstreamBroken("cut") for name in names})
    with pytest.raises(UpstreamFailed):
        await world.serve()
    assert len(world.upstream.sent) == 3


@pytest.mark.parametrize(
    ("error", "refusal"),
    [(UpstreamRefused("x"), NoEndpoint), (UpstreamBroken("x"), UpstreamFailed), (UpstreamSilent("x"), UpstreamTimeout)],
)
async def test_what_failed_last_decides_the_status(error: UpstreamError, refusal: type[Exception]) -> None:
    world = World([endpoint("a"), endpoint("b")], {name: lambda _: error for name in "ab"})
    with pytest.raises(refusal):
        await world.serve()
    assert world.inflight.snapshot() == {}


async def test_an_answer_that_breaks_off_is_not_begun_again_elsewhere() -> None:
    broken = FakeResponse(200, [SSE], [SPOKEN, UpstreamBroken("cut")])
    world = World([endpoint("a"), endpoint("b")], {"a": lambda _: broken, "b": lambda _: stream("x")}, held={"a": 5})
    with pytest.raises(UpstreamFailed):
        await world.serve()
    assert world.upstream.sent_to("b") == []
    assert world.recorder.ended[0].outcome is Outcome.CUT
    assert broken.closed


@pytest.mark.parametrize("beginning", [[], [b"data: {}\n\n"]], ids=["head", "event-without-content"])
async def test_an_answer_that_breaks_off_before_any_content_is_asked_of_another(beginning: list[bytes]) -> None:
    broken = FakeResponse(200, [SSE], [*beginning, UpstreamBroken("cut")])
    world = World([endpoint("a"), endpoint("b")], {"a": lambda _: broken, "b": lambda _: stream("x")}, held={"a": 5})
    reply = await world.serve()
    assert b'"x"' in reply.body
    assert world.pool.failed == ["a"]
    assert world.inflight.snapshot() == {}


@pytest.mark.parametrize("allowed", [0, 1])
async def test_past_the_retry_budget_the_first_failure_is_the_clients_answer(allowed: int) -> None:
    engines = {"a": lambda _: answer({"error": "busy"}, 503), "b": lambda _: stream("x")}
    budget = RetryBudget(ratio=0.0, reserve=allowed)
    world = World([endpoint("a"), endpoint("b")], engines, held={"a": 5}, budget=budget)
    assert (await world.serve()).status == (200 if allowed else 503)


async def test_no_attempt_begins_past_the_time_for_retries() -> None:
    engines = {"a": lambda _: answer({"error": "busy"}, 503), "b": lambda _: stream("x")}
    world = World([endpoint("a"), endpoint("b")], engines, held={"a": 5}, retry_within_s=0.0)
    assert (await world.serve()).status == 503
    assert world.upstream.sent_to("b") == []


async def test_an_error_inside_a_stream_is_relayed_and_counted() -> None:
    event = b'data: {"error": {"message": "died", "code": 500}}\n\ndata: [DONE]\n\n'
    world = World([endpoint("a")], {"a": lambda _: FakeResponse(200, [SSE], [event])})
    assert (await world.serve()).body == event
    assert world.recorder.ended[0].outcome is Outcome.ENGINE_ERROR


async def test_a_client_that_leaves_closes_the_engines_stream_and_frees_its_slot() -> None:
    endless = FakeResponse(200, [SSE], [b"data: x\n\n", asyncio.Event().wait()])
    world = World([endpoint("a")], {"a": lambda _: endless})
    serving = asyncio.create_task(world.serve())
    while not world.upstream.responses:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert world.inflight.get("a").requests == 1
    serving.cancel()
    await asyncio.wait([serving])
    assert endless.closed
    assert world.inflight.snapshot() == {}
    assert world.recorder.ended[0].outcome is Outcome.CLIENT_GONE


async def test_a_client_that_leaves_before_the_decision_reaches_no_engine() -> None:
    world = World([endpoint("a")], {}, tokenization=FakeTokenization(asyncio.Event().wait()))
    serving = asyncio.create_task(world.serve())
    await asyncio.sleep(0)
    serving.cancel()
    await asyncio.wait([serving])
    assert world.upstream.sent == []
    assert len(world.recorder.ended) == 1


@pytest.mark.parametrize("stored", [False, True])
async def test_a_mistake_of_the_routers_own_is_told_as_one(stored: bool) -> None:
    def mistake(_request: object) -> FakeResponse:
        raise KeyError

    world = World([endpoint("a")], {"a": mistake})
    with pytest.raises(KeyError):
        await (world.director.serve_stored(request(), "resp_1", FakeReply()) if stored else world.serve())
    (ended,) = world.recorder.ended
    assert (ended.outcome, ended.status) == (Outcome.ROUTER_ERROR, 500)


@pytest.mark.parametrize(("told", "outcome"), [(CUT, Outcome.CUT), (None, Outcome.CLIENT_GONE)])
async def test_who_ended_the_wait_for_a_stored_response_is_told(told: str | None, outcome: Outcome) -> None:
    endless = FakeResponse(200, [SSE], [b"data: x\n\n", asyncio.Event().wait()])
    world = World([endpoint("a")], {"a": lambda _: endless})
    serving = asyncio.create_task(world.director.serve_stored(request(), "resp_1", FakeReply()))
    while not world.upstream.responses:
        await asyncio.sleep(0)
    serving.cancel(told)
    await asyncio.wait([serving])
    assert [ended.outcome for ended in world.recorder.ended] == [outcome]


async def test_a_model_nobody_serves_is_404_after_the_engines_were_asked_again() -> None:
    world = World([endpoint("a", models=["other"])], {})
    with pytest.raises(ModelNotFound):
        await world.serve()
    assert world.pool.refreshes == 1


async def test_endpoints_that_are_down_or_draining_get_nothing() -> None:
    states = [endpoint("a", health=Health.UNHEALTHY), endpoint("b", health=Health.DRAINING), endpoint("c")]
    world = World(states, {"c": lambda _: stream("x")}, held={"a": 9, "b": 9})
    assert (await world.serve()).headers[b"x-kvrouter-endpoint"] == b"c"
    world.pool.states = states[:2]
    with pytest.raises(NoEndpoint):
        await world.serve()


async def test_an_endpoint_on_trial_gets_one_request_at_a_time_unless_nobody_else_can_decode() -> None:
    back = msgspec.structs.replace(endpoint("a"), on_trial=True)
    engines = {name: lambda _: stream("x") for name in "abp"}
    for others, expected in (([endpoint("b")], "b"), ([endpoint("p", P)], "a"), ([], "a")):
        world = World([back, *others], engines, held={"a": 5})
        await world.serve()
        with_one = world.inflight.acquire("a", prefill_tokens=0, tokens=0)
        await world.serve()
        with_one.release()
        served = [sent.endpoint.id for sent in world.upstream.sent if sent.endpoint.role is not P]
        assert served == ["a", expected]


async def test_the_router_refuses_past_its_limit_and_counts_it() -> None:
    world = World([endpoint("a")], {"a": lambda _: stream("x")}, limit=1)
    with world.director._admission, pytest.raises(Overloaded):
        await world.serve()
    assert world.recorder.ended[0].outcome is Outcome.REFUSED
    assert (await world.serve()).status == 200


async def test_the_first_token_ends_the_prefill_in_the_in_flight_account() -> None:
    held = asyncio.Event()
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    world = World([endpoint("a")], {"a": lambda _: FakeResponse(200, [SSE], [event, held.wait(), b"data: [DONE]\n\n"])})
    serving = asyncio.create_task(world.serve())
    while not world.recorder.first_tokens:
        await asyncio.sleep(0)
    assert world.inflight.get("a").prefill_tokens == 0
    assert world.inflight.get("a").tokens > 0
    held.set()
    await serving


async def test_usage_that_only_the_router_asked_for_is_taken_out_again() -> None:
    usage = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2}}\n\n'

    def engine(sent: Sent) -> FakeResponse:
        assert sent.json["stream_options"] == {"include_usage": True}
        return FakeResponse(
            200, [SSE], [b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n', usage, b"data: [DONE]\n\n"]
        )

    world = World([endpoint("a")], {"a": engine}, inject_stream_usage=True)
    reply = await world.serve()
    assert b"usage" not in reply.body
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert world.recorder.ended[0].prompt_tokens == 7


class TestDisaggregated:
    async def test_the_prefillers_hand_off_goes_verbatim_into_an_otherwise_untouched_body(self) -> None:
        world = World([endpoint("p", P), endpoint("d", D)], {"p": lambda _: prefilled(), "d": lambda _: stream("x")})
        asked = request()
        reply = await world.serve(asked)
        prefill, decode = world.upstream.sent
        assert prefill.json["max_tokens"] == 1
        assert prefill.json["stream"] is False
        assert prefill.json["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.json == {**json.loads(asked.body), "kv_transfer_params": HAND_OFF}
        assert reply.headers[b"x-kvrouter-prefill-endpoint"] == b"p"
        assert reply.headers[b"x-kvrouter-endpoint"] == b"d"
        assert world.recorder.ended[0].reason == "pd"
        assert world.inflight.snapshot() == {}

    @pytest.mark.parametrize(
        "failure",
        [
            lambda _: UpstreamRefused("x"),
            lambda _: UpstreamBroken("x"),
            lambda _: answer({}, 500),
            lambda _: answer({"id": 1}),
            lambda _: answer({"kv_transfer_params": None}),
            lambda _: FakeResponse(200, [], [b"not json"]),
            lambda _: FakeResponse(200, [], [b'{"kv_tr', UpstreamBroken("cut")]),
        ],
    )
    async def test_a_failed_prefill_goes_to_another_prefiller_then_to_the_decoder(self, failure: Engine) -> None:
        both: dict[str, Engine] = {"p1": failure, "p2": lambda _: prefilled(), "d": lambda _: stream("x")}
        states = [endpoint("p1", P), endpoint("p2", P), endpoint("d", D)]
        reply = await World(states, both, held={"p1": 5}).serve()
        assert reply.headers[b"x-kvrouter-prefill-endpoint"] == b"p2"

        world = World(states, {**both, "p2": failure}, held={"p1": 5})
        reply = await world.serve()
        assert reply.status == 200
        assert b"x-kvrouter-prefill-endpoint" not in reply.headers
        assert "kv_transfer_params" not in world.upstream.sent_to("d")[0].json
        assert world.inflight.snapshot() == {}

    async def test_a_client_error_of_the_prefiller_is_the_clients_answer(self) -> None:
        refusal = {"error": {"message": "context too long"}}
        world = World([endpoint("p", P), endpoint("d", D)], {"p": lambda _: answer(refusal, 400)})
        reply = await world.serve()
        assert (reply.status, json.loads(reply.body)) == (400, refusal)
        assert world.upstream.sent_to("d") == []

    async def test_a_client_that_leaves_during_the_prefill_leg_starts_no_decode(self) -> None:
        async def slow() -> FakeResponse:
            await asyncio.Event().wait()
            raise AssertionError

        world = World([endpoint("p", P), endpoint("d", D)], {"p": lambda _: slow()})
        serving = asyncio.create_task(world.serve())
        while not world.upstream.sent:
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])
        assert world.upstream.sent_to("d") == []
        assert world.inflight.snapshot() == {}

    async def test_a_dead_decoder_is_replaced_and_the_hand_off_reused(self) -> None:
        world = World(
            [endpoint("p", P), endpoint("d1", D), endpoint("d2", D)],
            {"p": lambda _: prefilled(), "d1": lambda _: UpstreamRefused("x"), "d2": lambda _: stream("x")},
            held={"d1": 5},
        )
        reply = await world.serve()
        assert reply.headers[b"x-kvrouter-endpoint"] == b"d2"
        assert len(world.upstream.sent_to("p")) == 1
        assert world.upstream.sent_to("d2")[0].json["kv_transfer_params"] == HAND_OFF

    async def test_a_decoder_whose_hand_off_is_lost_prefills_by_itself_and_nothing_counts_as_a_retry(self) -> None:
        def reads_what_is_gone(sent: Sent) -> FakeResponse | UpstreamOrphaned:
            return UpstreamOrphaned("gone") if "kv_transfer_params" in sent.json else stream("x")

        world = World(
            [endpoint("p", P), endpoint("d1", D), endpoint("d2", D)],
            {"p": lambda _: prefilled(), "d1": reads_what_is_gone},
            held={"d1": 5},
            max_attempts=1,
            budget=RetryBudget(ratio=0.0, reserve=0),
        )
        reply = await world.serve()
        assert reply.headers[b"x-kvrouter-endpoint"] == b"d1"
        assert b"x-kvrouter-prefill-endpoint" not in reply.headers
        assert world.pool.failed == []
        assert [event.kind for event in world.recorder.failed] == ["orphaned"]
        assert [event.prefills for event in world.recorder.dispatched] == [True, False, True]
        assert world.inflight.snapshot() == {}

    @pytest.mark.parametrize(
        ("body", "api"),
        [
            ({"model": "m", "messages": [{"role": "user", "content": "x" * 90}], "n": 2}, Api.CHAT),
            ({"model": "m", "prompt": ["x" * 50, "y" * 50]}, Api.COMPLETIONS),
            ({"prompt": "x"}, Api.COMPLETIONS),
        ],
    )
    async def test_a_request_whose_kv_cannot_be_handed_over_is_served_whole(
        self, body: dict[str, object], api: Api
    ) -> None:
        world = World([endpoint("p", P), endpoint("d", D)], {"d": lambda _: answer({})})
        reply = await world.serve(request(body, api=api))
        assert b"x-kvrouter-prefill-endpoint" not in reply.headers


class TestStoredResponses:
    async def test_the_holder_of_a_response_is_asked_for_it(self) -> None:
        created = FakeResponse(200, [(b"content-type", b"application/json")], [b'{"id":"resp_7","output":[]}'])
        states = [endpoint("a"), endpoint("b")]
        world = World(states, {"a": lambda _: created, "b": lambda _: created})
        reply = await world.serve(request({"model": "m", "input": "hi"}, api=Api.RESPONSES))
        holder = reply.headers[b"x-kvrouter-endpoint"].decode()

        again = World(states, {name: lambda _: answer({"id": "resp_7"}) for name in "ab"})
        again.holders.put("resp_7", world.holders.get("resp_7") or "")
        got = FakeReply()
        await again.director.serve_stored(request({}, api=Api.OTHER), "resp_7", got)
        assert [sent.endpoint.id for sent in again.upstream.sent] == [holder]

    async def test_an_unknown_id_is_asked_of_everybody_and_the_last_404_is_the_answer(self) -> None:
        world = World([endpoint("a"), endpoint("b")], {name: lambda _: answer({"error": {}}, 404) for name in "ab"})
        reply = FakeReply()
        await world.director.serve_stored(request({}, api=Api.OTHER), "resp_x", reply)
        assert reply.status == 404
        assert len(world.upstream.sent) == 2
        assert world.inflight.snapshot() == {}

    @pytest.mark.parametrize(
        "busy", [lambda _: answer({}, 503), lambda _: answer({}, 502), lambda _: UpstreamRefused("x")]
    )
    async def test_who_cannot_answer_now_is_not_taken_for_one_that_does_not_have_it(self, busy: Engine) -> None:
        engines: dict[str, Engine] = {"a": busy, "b": lambda _: answer({"id": "resp_x"})}
        world = World([endpoint("a"), endpoint("b")], engines)
        reply = FakeReply()
        await world.director.serve_stored(request({}, api=Api.OTHER), "resp_x", reply)
        assert reply.status == 200

        nowhere = World([endpoint("a"), endpoint("b")], {**engines, "b": lambda _: answer({}, 404)})
        with pytest.raises(NoEndpoint):
            await nowhere.director.serve_stored(request({}, api=Api.OTHER), "resp_x", FakeReply())
        assert nowhere.inflight.snapshot() == {}

    async def test_what_its_holder_does_not_have_any_more_is_gone(self) -> None:
        world = World([endpoint("a"), endpoint("b")], {"a": lambda _: answer({}, 404)})
        world.holders.put("resp_x", "a")
        reply = FakeReply()
        await world.director.serve_stored(request({}, api=Api.OTHER), "resp_x", reply)
        assert reply.status == 404

    async def test_while_its_holder_is_away_a_response_is_not_said_to_be_unknown(self) -> None:
        away = endpoint("a", health=Health.UNHEALTHY)
        world = World([away, endpoint("b")], {"b": lambda _: answer({}, 404)})
        world.holders.put("resp_x", "a")
        with pytest.raises(NoEndpoint):
            await world.director.serve_stored(request({}, api=Api.OTHER), "resp_x", FakeReply())
