"""`kvrouter check`: what is asked of engines, and what is said about their answers."""

from __future__ import annotations

import io
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from rich.console import Console

from loadtest.redis_server import RedisServer
from loadtest.simulator.settings import TOKENIZER_PATH
from router.check import PROBE_CHAT, Report, check
from router.check_view import show
from router.errors import ConfigError
from router.settings import Settings
from router.tokenization.loader import load_tokenizer
from tests.support.engines import METRICS, FakeEngines, Handler, answers, healthy

OURS = [int(token) for token in load_tokenizer(str(TOKENIZER_PATH)).chat(PROBE_CHAT).ids]


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def settings_of(**given: Any) -> Settings:
    return Settings.model_validate(given)


def sources(endpoint: str, replay: str | None = None) -> Handler:
    return answers(
        {"0": {"endpoint": endpoint, "replay_endpoint": replay, "topic": "", "enable_kv_cache_events": True}}
    )


async def run(hosts: Mapping[str, Mapping[str, Handler]], **settings: Any) -> Report:
    given = {"endpoints": [f"http://{host}:8000" for host in hosts]} | settings
    given["tokenization"] = {"default": str(TOKENIZER_PATH)} | given.get("tokenization", {})
    return await check(settings_of(**given), FakeEngines(hosts))


def troubles(report: Report) -> str:
    return "\n".join([*(t for engine in report.engines for t in engine.troubles), *report.troubles])


def notes(report: Report) -> str:
    return "\n".join([*(n for engine in report.engines for n in engine.notes), *report.notes])


async def test_a_whole_engine_is_good_and_fills_its_row(listening: str) -> None:
    engine = healthy(kv_event_sources=sources(listening, listening), tokenize=answers({"tokens": OURS}))
    report = await run({"a": engine})
    row = report.engines[0]
    assert report.good
    assert not notes(report)
    assert (row.id, row.health, row.version, list(row.models)) == ("a:8000", "ok", "0.32.0", ["m"])
    assert (row.block_size, row.num_blocks, row.events) == (16, 1000, "1 with replay")
    assert row.tokens == f"equal ({len(OURS)})"


async def test_one_that_is_not_there_is_trouble_and_does_not_hide_the_others() -> None:
    report = await check(
        settings_of(endpoints=["http://gone:8000", "http://a:8000"], tokenization={"default": str(TOKENIZER_PATH)}),
        FakeEngines({"a": healthy()}),
    )
    assert not report.good
    assert "cannot be reached (connection refused): start it" in troubles(report)
    assert report.engines[1].version == "0.32.0"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"health": answers("", 503)}, "answers 503 on /health: wait until it is up"),
        ({"v1_models": answers({"error": "key"}, 401)}, "refuses the API key: correct its api_key"),
        ({"v1_models": answers({"data": []})}, "lists no model on /v1/models (status 200)"),
        ({"v1_models": answers("<html>")}, "lists no model on /v1/models (status 200)"),
        (
            {"metrics": answers('vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n')},
            "is asleep: wake it up",
        ),
    ],
)
async def test_trouble_is_named_with_its_mend(changed: dict[str, Handler], sentence: str) -> None:
    report = await run({"a": healthy(**changed)})
    assert not report.good
    assert sentence in troubles(report)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({}, "publishes no KV events"),
        ({"kv_event_sources": answers("nonsense")}, "publishes no KV events"),
        ({"metrics": answers("", 404)}, "tells no load on /metrics (status 404)"),
        ({"metrics": answers(METRICS.replace('"True"', '"False"'))}, "has prefix caching off"),
        ({"metrics": answers(METRICS.partition("vllm:cache_config_info")[0])}, "does not tell its block size"),
        ({}, "the engine has no /tokenize (status 404) to compare"),
    ],
)
async def test_what_only_makes_routing_poorer_is_a_note(changed: dict[str, Handler], sentence: str) -> None:
    report = await run({"a": healthy(**changed)})
    assert report.good
    assert sentence in notes(report)


async def test_an_event_socket_that_cannot_be_reached_is_trouble(listening: str, closed: str) -> None:
    report = await run({"a": healthy(kv_event_sources=sources(listening, closed))})
    assert f"publishes KV events at {closed}, which cannot be reached (connection refused)" in troubles(report)


async def test_configured_event_sockets_are_tried_one_for_each_rank(closed: str) -> None:
    port = int(closed.rpartition(":")[2])
    report = await run(
        {"a": healthy()},
        endpoints=[{"url": "http://a:8000", "data_parallel_size": 2, "kv_events": {"endpoint": closed}}],
    )
    assert closed in troubles(report)
    assert report.engines[0].events == "2"
    assert f":{port + 1}" in troubles(report)


async def test_events_that_are_switched_off_are_not_missed() -> None:
    report = await run({"a": healthy()}, endpoints=[{"url": "http://a:8000", "kv_events": False}])
    assert report.engines[0].events == "off"
    assert "KV events" not in notes(report)


async def test_a_tokenizer_that_differs_is_trouble_and_says_from_where_on() -> None:
    theirs = [*OURS[:5], OURS[5] + 1, *OURS[6:]]
    report = await run({"a": healthy(tokenize=answers({"tokens": theirs}))})
    assert report.engines[0].tokens == "different"
    assert (
        f"makes {len(OURS)} tokens of a probe chat and the engine {len(OURS)}, different from token 5 on"
        in troubles(report)
    )


async def test_the_probe_chat_is_what_the_engine_is_asked() -> None:
    asked: list[Any] = []

    def tokenize(request: httpx.Request) -> tuple[int, Any]:
        asked.append(msgspec.json.decode(request.content))
        return 200, {"tokens": OURS}

    await run({"a": healthy(tokenize=tokenize)})
    assert asked == [{"model": "m", **PROBE_CHAT}]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tokenization": {"default": "/nowhere/at/all"}}, "tokenizer: /nowhere/at/all does not exist"),
        ({"log": {"requests": "/nowhere/at/all"}}, "log.requests: /nowhere/at/all cannot be written"),
        ({"upstream": {"ca_file": "/nowhere/at/all"}}, "upstream.ca_file"),
    ],
)
async def test_a_file_that_serve_could_not_open_is_a_bad_configuration(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        await run({"a": healthy()}, **given)


async def test_without_a_local_tokenizer_the_engine_is_asked_for_each_prompt(tmp_path: Path) -> None:
    root = str(tmp_path / "not-here")
    models = answers({"data": [{"id": "m", "root": root}, {"id": "lora", "root": "x", "parent": "m"}]})
    report = await check(
        settings_of(endpoints=["http://a:8000"]),
        FakeEngines({"a": healthy(v1_models=models, tokenize=answers({"tokens": [1, 2]}))}),
    )
    assert report.good
    assert report.engines[0].tokens == "by the engine"
    assert "m has no local tokenizer: prompts are tokenized by the engine" in notes(report)


async def test_keys_are_sent_and_an_engines_own_goes_first() -> None:
    seen: dict[str, str | None] = {}

    def models(request: httpx.Request) -> tuple[int, Any]:
        seen[request.url.host] = request.headers.get("authorization")
        return 200, {"data": [{"id": "m"}]}

    await run(
        {"a": healthy(v1_models=models), "b": healthy(v1_models=models)},
        endpoints=["http://a:8000", {"url": "http://b:8000", "api_key": "own"}],
        upstream={"api_key": "common"},
    )
    assert seen == {"a": "Bearer common", "b": "Bearer own"}


async def test_a_model_that_is_only_prefilled_is_trouble() -> None:
    report = await run(
        {"p": healthy("other"), "d": healthy()},
        endpoints=[{"url": "http://p:8000", "role": "prefill"}, {"url": "http://d:8000", "role": "decode"}],
    )
    assert "other of p:8000 is served by no decode engine" in troubles(report)


async def test_different_block_sizes_are_noted() -> None:
    other = healthy(metrics=answers(METRICS.replace('block_size="16"', 'block_size="32"')))
    report = await run({"a": healthy(), "b": other})
    assert "engines of m have blocks of 16 and 32 tokens" in notes(report)


async def test_a_ca_file_that_is_none_is_a_bad_configuration() -> None:
    with pytest.raises(ConfigError, match=r"upstream\.ca_file: /nowhere cannot be read"):
        await run({"a": healthy()}, upstream={"ca_file": "/nowhere"})


async def test_the_table_shows_rows_and_sentences() -> None:
    report = await check(
        settings_of(endpoints=["http://gone:8000", "http://a:8000"]),
        FakeEngines({"a": healthy("[bold]m")}),
    )
    written = io.StringIO()
    show(report, Console(width=160, file=written))
    text = written.getvalue()
    assert "gone:8000" in text
    assert "[bold]m" in text
    assert "trouble: gone:8000 cannot be reached" in text
    assert "good:" not in text


async def test_the_redis_named_is_tried() -> None:
    with RedisServer() as server:
        redis = {"url": server.url, "command_timeout_s": 5.0}
        settings = Settings.model_validate({"index": {"backend": "redis"}, "redis": redis})
        report = await check(settings)
        assert not report.troubles
        assert any(note.startswith(("Redis: Valkey ", "Redis: Redis ")) for note in report.notes)
        server.stop()
        refused = await check(settings)
    assert any(trouble.startswith("redis.url cannot be used") for trouble in refused.troubles)
    assert not refused.good
