"""`docker compose up --wait` gives a cluster that answers, reuses its cache and survives the loss of engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.support.compose import Compose

pytestmark = pytest.mark.timeout(1200)

ENGINES = {"prefill-0", "prefill-1", "decode-0", "decode-1"}
LONG_TEXT = " ".join(f"Fact {number} is that {number} squared makes {number * number}." for number in range(60))


@pytest.fixture
def client(cluster: Compose) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def stream(client: openai.OpenAI, model: str, prompt: str, max_tokens: int = 20) -> str:
    """A whole streamed answer; raises whatever a user of openai-python would see."""
    chunks = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=max_tokens, stream=True
    )
    parts: list[str] = []
    finish = None
    for chunk in chunks:
        for choice in chunk.choices:
            parts.append(choice.delta.content or "")
            finish = choice.finish_reason or finish
    assert finish in ("length", "stop")
    return "".join(parts)


def answer(client: openai.OpenAI, model: str, prompt: str, max_tokens: int = 20) -> str:
    """The same without streaming: nothing has reached the client until the answer is whole."""
    done = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], max_tokens=max_tokens
    )
    assert done.choices[0].finish_reason in ("length", "stop")
    return done.choices[0].message.content or ""


def flow_while(ask: Callable[[int], str], strike: Callable[[], object], *, requests: int = 64) -> list[str]:
    """`requests` asked by eight threads; `strike` happens once a quarter of them is answered. All the answers."""
    answered = threading.Semaphore(0)

    def one(number: int) -> str:
        try:
            return ask(number)
        finally:
            answered.release()

    with ThreadPoolExecutor(8) as threads:
        pending = [threads.submit(one, number) for number in range(requests)]
        for _ in range(requests // 4):
            assert answered.acquire(timeout=120)
        strike()
        return [future.result(timeout=120) for future in pending]


def test_every_service_is_healthy(cluster: Compose) -> None:
    services = cluster.services()
    assert set(services) == ENGINES | {"redis", "router"}
    assert {name: row["Health"] for name, row in services.items()} == dict.fromkeys(services, "healthy")


def test_only_the_router_is_published_and_only_on_loopback(cluster: Compose) -> None:
    published = {
        name: {(port["URL"], port["PublishedPort"]) for port in row["Publishers"] or [] if port["PublishedPort"]}
        for name, row in cluster.services().items()
    }
    assert {name: ports for name, ports in published.items() if ports} == {"router": {("127.0.0.1", cluster.port)}}


def test_a_chat_streams_through_the_cluster(client: openai.OpenAI, model: str) -> None:
    assert stream(client, model, "Say something about routers.")


def test_a_long_prompt_is_prefilled_by_one_engine_and_decoded_by_another(cluster: Compose, model: str) -> None:
    body = {"model": model, "messages": [{"role": "user", "content": LONG_TEXT}], "max_tokens": 8}
    reply = httpx.post(f"{cluster.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    assert "prefill" in reply.headers["x-kvrouter-prefill-endpoint"]
    assert "decode" in reply.headers["x-kvrouter-endpoint"]


def test_the_second_turn_of_a_conversation_is_served_from_the_cache(client: openai.OpenAI, model: str) -> None:
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "system", "content": "Turn two. " + LONG_TEXT},
        {"role": "user", "content": "Which fact is the oddest?"},
    ]
    first = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content or ""},
        {"role": "user", "content": "And the next one?"},
    ]
    second = client.chat.completions.create(model=model, messages=messages, max_tokens=16)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > first.usage.prompt_tokens // 2


def test_the_index_lies_in_redis(cluster: Compose, client: openai.OpenAI, model: str) -> None:
    stream(client, model, "For the index. " + LONG_TEXT)
    ends = time.monotonic() + 30
    while not int(cluster.run("exec", "-T", "redis", "redis-cli", "dbsize")):
        assert time.monotonic() < ends, "the router put nothing into Redis"
        time.sleep(0.5)


def test_a_prefill_engine_killed_under_load_is_felt_by_no_client(
    cluster: Compose, client: openai.OpenAI, model: str
) -> None:
    answers = flow_while(
        lambda number: stream(client, model, f"Conversation {number}. {LONG_TEXT}"),
        lambda: cluster.run("kill", "prefill-1"),
    )
    assert all(answers)
    assert cluster.services()["prefill-1"]["State"] == "exited"


def test_a_decode_engine_killed_under_load_is_felt_by_no_client_that_has_no_byte_yet(
    cluster: Compose, client: openai.OpenAI, model: str
) -> None:
    answers = flow_while(
        lambda number: answer(client, model, f"Question {number}: what is {number} and {number}?", max_tokens=40),
        lambda: cluster.run("kill", "decode-1"),
    )
    assert all(answers)
    assert cluster.services()["decode-1"]["State"] == "exited"


def test_what_is_left_goes_on_streaming(cluster: Compose, client: openai.OpenAI, model: str) -> None:
    cluster.run("kill", "decode-1", check=False)
    assert all(stream(client, model, f"Still there, number {number}?") for number in range(8))
