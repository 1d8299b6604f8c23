from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.api.callers import TrustedPeers
from router.api.front import Front, RequestLimits
from router.api.http_protocol import REFUSED_WITH
from router.api.isolation import TenantSalt
from router.api.keys import Key, KeyRing
from router.api.lifecycle import Lifecycle
from router.api.reading import FrontSettings
from router.core import Api, Caller, InferenceRequest
from router.errors import NoEndpoint, RateLimited, UpstreamFailed
from router.observability.events import Answered
from router.ports import Reply
from tests.support.asgi import Answer, AsgiClient

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'


class FakeJourney:
    """Answers every request by `script`, and remembers what it was given."""

    def __init__(self, script: Callable[[InferenceRequest, Reply], Awaitable[None]] | None = None) -> None:
        self._script = script
        self.requests: list[InferenceRequest] = []
        self.stored: list[str] = []
        self.cancelled = 0

    async def serve(self, request: InferenceRequest, reply: Reply) -> None:
        self.requests.append(request)
        if self._script is None:
            await reply.start(200, [(b"content-type", b"application/json")])
            await reply.end(b"{}")
            return
        try:
            await self._script(request, reply)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def serve_stored(self, request: InferenceRequest, response_id: str, reply: Reply) -> None:
        self.stored.append(response_id)
        await self.serve(request, reply)

    async def explain(self, request: InferenceRequest, reply: Reply) -> None:
        await self.serve(request, reply)


class Told:
    """What the front tells of answers that no journey tells of."""

    def __init__(self) -> None:
        self.answers: list[tuple[str, str, int | None]] = []

    def on_answered(self, event: Answered) -> None:
        assert event.request_id
        assert event.e2e_s == 0.0
        self.answers.append((event.api, event.outcome.value, event.status))


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode(), "more_body": False})


def front(
    journey: FakeJourney,
    *,
    keys: KeyRing | None = None,
    lifecycle: Lifecycle | None = None,
    limits: RequestLimits | None = None,
    told: Told | None = None,
    **settings: Any,
) -> Front:
    return Front(
        rest=elsewhere,
        journey=journey,
        lifecycle=lifecycle or Lifecycle(),
        keys=keys or KeyRing(),
        settings=FrontSettings(**{"max_body_bytes": 1000, **settings}),
        limits=limits,
        observer=told or Told(),
        clock=lambda: 7.0,
    )


def ring(text: str, **rights: Any) -> KeyRing:
    return KeyRing([Key(digest=hashlib.sha256(text.encode()).digest(), name=text, tenant=text, **rights)])


async def post(app: Front, path: str = "/v1/chat/completions", **how: Any) -> Answer:
    return await AsgiClient(app).request("POST", path, **{"body": CHAT, **how})


async def test_a_chat_request_reaches_the_journey_with_its_bytes_untouched() -> None:
    journey = FakeJourney()
    answer = await post(front(journey), headers=[(b"x-request-id", b"r1"), (b"x-mine", b"1")], query=b"a=b")
    (request,) = journey.requests
    assert (request.api, request.model, request.body, request.arrived_at) == (Api.CHAT, "m", CHAT, 7.0)
    assert request.path == "/v1/chat/completions?a=b"
    assert request.headers == ((b"x-mine", b"1"),)
    assert answer.status == 200
    assert answer.headers[b"x-request-id"] == b"r1"


async def test_a_request_without_an_id_gets_one() -> None:
    journey = FakeJourney()
    answer = await post(front(journey))
    assert answer.headers[b"x-request-id"].decode() == journey.requests[0].request_id
    assert len(journey.requests[0].request_id) == 32


async def test_paths_that_are_not_inference_go_elsewhere() -> None:
    answer = await AsgiClient(front(FakeJourney())).request("GET", "/health")
    assert (answer.status, answer.body) == (299, b"/health")


async def test_a_trailing_slash_is_served_in_place() -> None:
    journey = FakeJourney()
    assert (await post(front(journey), "/v1/chat/completions/")).status == 200
    assert journey.requests[0].path == "/v1/chat/completions"


async def test_another_method_is_refused_in_openais_shape() -> None:
    answer = await AsgiClient(front(FakeJourney())).request("GET", "/v1/chat/completions")
    assert answer.status == 405
    assert answer.headers[b"allow"] == b"POST"
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"1001")]])
async def test_a_body_over_the_limit_is_refused_declared_or_not(headers: list[tuple[bytes, bytes]]) -> None:
    journey = FakeJourney()
    answer = await post(front(journey), headers=headers, body=[b"x" * 600, b"x" * 600])
    assert answer.status == 413
    assert journey.requests == []


async def test_a_body_in_pieces_is_put_together() -> None:
    journey = FakeJourney()
    await post(front(journey), body=[CHAT[:10], CHAT[10:20], CHAT[20:]])
    assert journey.requests[0].body == CHAT


@pytest.mark.parametrize("body", [b"", b"[]", b"nonsense", b"\xff\xfe", b'"x"', b"[" * 900])
async def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    answer = await post(front(FakeJourney()), body=body)
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"]


async def test_a_key_is_asked_for_before_the_body_is_read() -> None:
    journey = FakeJourney()
    app = front(journey, keys=ring("k"))
    assert (await post(app, body=b"nonsense")).status == 401
    assert (await post(app, headers=[(b"authorization", b"Bearer k")])).status == 200


async def test_kv_transfer_params_of_a_client_do_not_get_through_unless_trusted() -> None:
    body = b'{"model":"m","prompt":"x","kv_transfer_params":{"do_remote_prefill":true}}'
    journey = FakeJourney()
    await post(front(journey), "/v1/completions", body=body)
    await post(front(journey, trust_kv_transfer_params=True), "/v1/completions", body=body)
    assert b"kv_transfer_params" not in journey.requests[0].body
    assert journey.requests[1].body == body


async def test_a_client_that_leaves_cancels_its_journey_and_gets_no_answer() -> None:
    async def never(_request: InferenceRequest, _reply: Reply) -> None:
        await asyncio.Event().wait()

    journey = FakeJourney(never)
    lifecycle = Lifecycle()
    answer = await post(front(journey, lifecycle=lifecycle), leave_after=0)
    assert journey.cancelled == 1
    assert answer.messages == []
    assert lifecycle.active == 0


async def test_a_client_that_leaves_midstream_cancels_its_journey() -> None:
    async def stream(_request: InferenceRequest, reply: Reply) -> None:
        await reply.start(200, [(b"content-type", b"text/event-stream")])
        while True:
            await reply.send(b"data: x\n\n")
            await asyncio.sleep(0)

    journey = FakeJourney(stream)
    answer = await post(front(journey), leave_after=3)
    assert journey.cancelled == 1
    assert not answer.complete


async def test_a_stream_that_breaks_off_ends_in_an_error_event_and_a_cut() -> None:
    async def broken(_request: InferenceRequest, reply: Reply) -> None:
        await reply.start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        await reply.send(b'data: {"id": 1')
        raise UpstreamFailed("broke")

    answer = await post(front(FakeJourney(broken)))
    assert answer.status == 200
    event = answer.body.split(b"\n\n")[1]
    assert json.loads(event.removeprefix(b"data: "))["error"]["message"] == "broke"
    assert b"[DONE]" not in answer.body
    assert not answer.complete


async def test_a_json_answer_that_breaks_off_is_only_cut() -> None:
    async def broken(_request: InferenceRequest, reply: Reply) -> None:
        await reply.start(200, [(b"content-type", b"application/json"), (b"content-length", b"100")])
        await reply.send(b'{"id"')
        raise UpstreamFailed("broke")

    answer = await post(front(FakeJourney(broken)))
    assert answer.body == b'{"id"'
    assert not answer.complete


async def test_a_failure_of_the_routers_own_is_answered_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    async def bug(_request: InferenceRequest, _reply: Reply) -> None:
        raise KeyError("secret detail")

    answer = await post(front(FakeJourney(bug)))
    assert answer.status == 500
    assert b"secret detail" not in answer.body
    assert "failed in the router" in caplog.text


async def test_a_refusing_router_answers_503() -> None:
    lifecycle = Lifecycle()
    lifecycle.refuse()
    answer = await post(front(FakeJourney(), lifecycle=lifecycle))
    assert answer.status == 503
    assert answer.headers[b"retry-after"] == b"1"


async def test_a_cut_exchange_tells_its_client() -> None:
    lifecycle = Lifecycle()
    begun = asyncio.Event()

    async def endless(_request: InferenceRequest, reply: Reply) -> None:
        await reply.start(200, [(b"content-type", b"text/event-stream")])
        begun.set()
        await asyncio.Event().wait()

    request = asyncio.create_task(post(front(FakeJourney(endless), lifecycle=lifecycle)))
    await begun.wait()
    lifecycle.cut_all()
    answer = await request
    assert b"shutting down" in answer.body
    assert not answer.complete


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses/resp_1"), ("DELETE", "/v1/responses/resp_1"), ("POST", "/v1/responses/resp_1/cancel")],
)
async def test_a_stored_response_is_asked_for_by_its_id(method: str, path: str) -> None:
    journey = FakeJourney()
    answer = await AsgiClient(front(journey)).request(method, path)
    assert answer.status == 200
    assert journey.stored == ["resp_1"]
    assert journey.requests[0].method == method


@pytest.mark.parametrize("path", ["/v1/responses/..", "/v1/responses/a/b", "/v1/responses/a%2f", "/v1/responses/"])
async def test_an_id_that_could_reach_another_path_never_goes_upstream(path: str) -> None:
    journey = FakeJourney()
    await AsgiClient(front(journey)).request("GET", path)
    assert journey.stored == []


OWN_KEY = (b"authorization", b"Bearer k")
STEERED = (
    OWN_KEY,
    (b"x-llm-d-inference-fairness-id", b"t9"),
    (b"x-llm-d-inference-objective", b"urgent"),
    (b"x-llm-d-slo-ttft-ms", b"100"),
    (b"x-vllm-priority", b"-9"),
)
HASTY = b'{"model": "m", "priority": -9, "messages": []}'


async def asked(keys: KeyRing, body: bytes = HASTY, **settings: Any) -> InferenceRequest:
    journey = FakeJourney()
    assert (await post(front(journey, keys=keys, **settings), headers=STEERED, body=body)).status == 200
    return journey.requests[0]


async def test_a_client_without_rights_steers_nothing() -> None:
    request = await asked(ring("k"))
    assert request.caller == Caller("k", None, None, "k")
    assert (request.routing_headers, request.headers) == ({}, ())
    assert json.loads(request.body) == {"model": "m", "messages": []}


@pytest.mark.parametrize(
    ("keys", "settings"),
    [
        (ring("k", trusted=True), {}),
        (ring("k"), {"trusted_peers": TrustedPeers(["127.0.0.0/8"])}),
    ],
    ids=["by its key", "by where it comes from"],
)
async def test_a_trusted_client_steers_by_what_it_says(keys: KeyRing, settings: dict[str, Any]) -> None:
    request = await asked(keys, **settings)
    assert request.caller == Caller("t9", "urgent", 9, "k")
    assert request.routing_headers["x-llm-d-slo-ttft-ms"] == "100"
    assert request.headers == ((b"x-vllm-priority", b"-9"),)
    assert request.body == HASTY


async def test_a_peer_elsewhere_is_not_trusted() -> None:
    request = await asked(ring("k"), trusted_peers=TrustedPeers(["10.0.0.0/8"]))
    assert request.caller == Caller("k", None, None, "k")


@pytest.mark.parametrize(("sent", "goes_on"), [(b"-9", b"-5"), (b"-5", b"-5"), (b"3", b"3"), (b'"-7"', b"-5")])
async def test_a_key_gets_no_more_priority_than_its_own(sent: bytes, goes_on: bytes) -> None:
    body = HASTY.replace(b"-9", sent)
    request = await asked(ring("k", max_priority=5), body)
    assert request.body == HASTY.replace(b"-9", goes_on)
    assert request.caller.priority == -int(goes_on)


async def test_a_priority_that_cannot_be_read_is_not_passed_on_unjudged() -> None:
    request = await asked(ring("k", max_priority=5), HASTY.replace(b"-9", b"[9]"))
    assert b"priority" not in request.body


async def test_where_nobody_has_rights_bodies_stay_as_they_are() -> None:
    assert (await asked(KeyRing())).body == HASTY
    assert (await asked(ring("k"), strip_untrusted_priority=False)).body == HASTY


async def test_headers_that_anybody_may_send_are_read_and_passed_on() -> None:
    request = await asked(KeyRing(), trusted_headers=frozenset({b"x-llm-d-inference-fairness-id"}))
    assert request.caller == Caller("t9")
    assert request.headers == ((b"x-llm-d-inference-fairness-id", b"t9"),)


async def test_a_tenants_salt_takes_the_place_of_its_own_and_counts_for_routing_too() -> None:
    salt = TenantSalt("a secret of the routers")
    body = b'{"model": "m", "cache_salt": "mine", "messages": []}'
    request = await asked(ring("k"), body, tenant_salt=salt)
    assert json.loads(request.body)["cache_salt"] == request.cache_salt == salt("k", "mine")
    unsalted = await asked(ring("k"), CHAT, tenant_salt=salt)
    assert json.loads(unsalted.body)["cache_salt"] == unsalted.cache_salt == salt("k", None)


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"gzip, identity", b"\xff"])
async def test_an_encoded_body_is_refused_and_its_mend_told(encoding: bytes) -> None:
    journey = FakeJourney()
    answer = await post(front(journey), headers=[(b"content-encoding", encoding)])
    assert answer.status == 415
    assert answer.headers[b"accept-encoding"] == b"identity"
    assert json.loads(answer.body)["error"]["code"] == "unsupported_content_encoding"
    assert journey.requests == []


@pytest.mark.parametrize("encoding", [b"", b"identity", b" Identity "])
async def test_a_body_that_says_it_is_not_encoded_is_served(encoding: bytes) -> None:
    assert (await post(front(FakeJourney()), headers=[(b"content-encoding", encoding)])).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"])
async def test_rendering_and_token_in_requests_are_forwarded(path: str) -> None:
    journey = FakeJourney()
    assert (await post(front(journey), path)).status == 200
    (request,) = journey.requests
    assert (request.path, request.api, request.model, request.body) == (path, Api.OTHER, "m", CHAT)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a": NaN}', b'{"a": "\\ud83d", "kv_transfer_params": {}}'])
@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
async def test_a_token_in_request_that_cannot_be_read_is_not_passed_on_unjudged(body: bytes, kind: bytes) -> None:
    journey = FakeJourney()
    answer = await post(front(journey), "/inference/v1/generate", body=body, headers=[(b"content-type", kind)])
    assert answer.status == 400
    assert journey.requests == []


async def test_no_door_of_a_token_in_request_lets_transfer_parameters_through() -> None:
    journey = FakeJourney()
    body = b'{"model":"m","token_ids":[1],"sampling_params":{"extra_args":{"kv_transfer_params":{"a":1}}}}'
    await post(front(journey), "/inference/v1/generate", body=body)
    assert journey.requests[0].body == b'{"model":"m","token_ids":[1],"sampling_params":{"extra_args":{}}}'


class FakeLimits:
    """One request at one time, each name."""

    def __init__(self) -> None:
        self.inside: list[str] = []

    def enter(self, key: str) -> list[tuple[bytes, bytes]]:
        if key in self.inside:
            raise RateLimited("enough", retry_after_s=7, fields=[(b"x-ratelimit-limit-requests", b"1")])
        self.inside.append(key)
        return [(b"x-ratelimit-limit-requests", b"1")]

    def leave(self, key: str) -> None:
        self.inside.remove(key)


async def test_a_keys_limits_are_asked_before_the_body_is_read_and_left_however_it_ends() -> None:
    limits = FakeLimits()
    app = front(FakeJourney(), keys=ring("k"), limits=limits)
    authorized = [(b"authorization", b"Bearer k")]
    answer = await post(app, headers=authorized)
    assert (answer.status, answer.headers[b"x-ratelimit-limit-requests"]) == (200, b"1")
    answer = await post(app, headers=authorized, body=b"no json")
    assert (answer.status, answer.headers[b"x-ratelimit-limit-requests"]) == (400, b"1")
    await post(app, headers=authorized, leave_after=0)
    assert limits.inside == []
    limits.inside.append("k")
    answer = await post(app, headers=authorized, body=b"never read")
    assert (answer.status, answer.headers[b"retry-after"]) == (429, b"7")
    assert [name for name, _ in answer.messages[0]["headers"]].count(b"x-ratelimit-limit-requests") == 1
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"
    assert limits.inside == ["k"]


@pytest.mark.parametrize("query", [b"a b", b"a\tb", b"\x00", b"\x7f"])
async def test_a_query_that_cannot_be_sent_on_is_refused(query: bytes) -> None:
    journey = FakeJourney()
    assert (await post(front(journey), query=query)).status == 400
    assert journey.requests == []


async def test_a_query_beyond_ascii_is_served() -> None:
    assert (await post(front(FakeJourney()), query=b"a=\xff")).status == 200


CHAT_PATH = "/v1/chat/completions"
HUGE = (b"content-length", b"1001")
GZIP = (b"content-encoding", b"gzip")


@pytest.mark.parametrize(
    ("method", "path", "how", "told"),
    [
        ("POST", CHAT_PATH, {"body": b"{x}"}, ("chat", "client_error", 400)),
        ("POST", "/v1/completions/", {"body": b""}, ("completions", "client_error", 400)),
        ("POST", CHAT_PATH, {"query": b"a b"}, ("chat", "client_error", 400)),
        ("POST", "/v1/messages", {"headers": []}, ("messages", "client_error", 401)),
        ("GET", "/v1/responses/resp_1/cancel/on", {}, ("other", "client_error", 404)),
        ("GET", CHAT_PATH, {}, ("chat", "client_error", 405)),
        ("OPTIONS", "/v1/embeddings", {"headers": []}, ("other", "client_error", 405)),
        ("PUT", "/v1/responses/resp_1", {}, ("other", "client_error", 405)),
        ("POST", CHAT_PATH, {"headers": [OWN_KEY, HUGE]}, ("chat", "client_error", 413)),
        ("POST", CHAT_PATH, {"headers": [OWN_KEY, GZIP]}, ("chat", "client_error", 415)),
        ("POST", "/debug/explain", {"body": b"{}"}, ("explain", "client_error", 400)),
        ("POST", "/debug/explain", {"headers": []}, ("explain", "client_error", 401)),
        ("POST", "/debug/explain", {}, ("explain", "ok", 200)),
    ],
)
async def test_an_answer_without_a_journey_is_told_once(
    method: str, path: str, how: dict[str, Any], told: tuple[str, str, int]
) -> None:
    seen, journey = Told(), FakeJourney()
    app = front(journey, keys=ring("k"), told=seen)
    host = (b"host", b"localhost")
    asked = {"body": CHAT, "headers": [OWN_KEY, host], **how}
    answer = await AsgiClient(app).request(method, path, **asked)
    assert seen.answers == [told]
    assert answer.status == told[2]
    assert bool(journey.requests) == (told[1] == "ok")


async def test_a_refusal_by_rate_or_at_the_end_is_told_as_one() -> None:
    seen, limits, lifecycle = Told(), FakeLimits(), Lifecycle()
    limits.inside.append("k")
    app = front(FakeJourney(), keys=ring("k"), limits=limits, lifecycle=lifecycle, told=seen)
    assert (await post(app, headers=[OWN_KEY])).status == 429
    lifecycle.refuse()
    assert (await post(app, headers=[OWN_KEY])).status == 503
    assert seen.answers == [("chat", "refused", 429), ("chat", "refused", 503)]


async def test_what_a_journey_tells_itself_is_not_told_again() -> None:
    async def refused(_request: InferenceRequest, _reply: Reply) -> None:
        raise NoEndpoint("nobody")

    async def bug(_request: InferenceRequest, _reply: Reply) -> None:
        raise KeyError

    seen = Told()
    for script, status in ((None, 200), (refused, 503), (bug, 500)):
        app = front(FakeJourney(script), told=seen)
        assert (await post(app)).status == status
        assert (await AsgiClient(app).request("GET", "/v1/responses/resp_1")).status == status
    assert seen.answers == []


async def test_an_explanation_that_fails_is_told_as_it_ended() -> None:
    async def refused(_request: InferenceRequest, _reply: Reply) -> None:
        raise NoEndpoint("nobody")

    async def bug(_request: InferenceRequest, _reply: Reply) -> None:
        raise KeyError

    seen = Told()
    for script in (refused, bug):
        await post(front(FakeJourney(script), told=seen), "/debug/explain", headers=[(b"host", b"localhost")])
    assert seen.answers == [("explain", "refused", 503), ("explain", "router_error", 500)]


@pytest.mark.parametrize(
    ("refused_with", "told"), [(None, ("chat", "client_gone", None)), (408, ("chat", "client_error", 408))]
)
async def test_a_body_that_never_ends_is_told_by_who_gave_up(
    refused_with: int | None, told: tuple[str, str, int | None]
) -> None:
    seen = Told()
    app = front(FakeJourney(), told=seen)

    async def connection(scope: Any, _receive: Any, send: Any) -> None:
        async def receive() -> dict[str, str]:
            if refused_with is not None:
                scope[REFUSED_WITH] = refused_with
            return {"type": "http.disconnect"}

        await app(scope, receive, send)

    answer = await AsgiClient(connection).request("POST", CHAT_PATH, body=CHAT)
    assert answer.messages == []
    assert seen.answers == [told]


class Closed:
    """A connection that closes where it is used for the `at`th time, as uvloop says it before the server knows."""

    def __init__(self, at: int) -> None:
        self._left = at

    def used(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")


@pytest.mark.parametrize(("at", "cancelled"), [(0, 0), (1, 1), (2, 1)], ids=["body", "head", "answer"])
async def test_a_connection_that_closes_as_it_is_used_is_a_client_that_left(
    at: int, cancelled: int, caplog: pytest.LogCaptureFixture
) -> None:
    connection, seen = Closed(at), Told()

    async def script(_request: InferenceRequest, reply: Reply) -> None:
        await reply.start(200, [(b"content-type", b"text/event-stream")])
        await reply.send(b"data: 1\n\n")

    async def through(scope: Any, receive: Any, send: Any) -> None:
        asked = 0

        async def receive_from() -> Any:
            nonlocal asked
            asked += 1
            if asked == 1:
                connection.used()
            return await receive()

        async def send_to(message: Any) -> None:
            connection.used()
            await send(message)

        await app(scope, receive_from, send_to)

    journey = FakeJourney(script)
    app = front(journey, told=seen)
    await AsgiClient(through).request("POST", CHAT_PATH, body=CHAT)
    assert journey.cancelled == cancelled
    assert seen.answers == ([("chat", "client_gone", None)] if at == 0 else [])
    assert caplog.messages == []


async def test_a_refusal_that_finds_the_connection_closed_is_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    connection, seen = Closed(0), Told()

    async def through(scope: Any, receive: Any, send: Any) -> None:
        async def send_to(message: Any) -> None:
            connection.used()

        await front(FakeJourney(), told=seen)(scope, receive, send_to)

    await AsgiClient(through).request("POST", CHAT_PATH, body=b"{")
    assert seen.answers == [("chat", "client_error", 400)]
    assert caplog.messages == []
