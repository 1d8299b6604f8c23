"""The metrics page has vLLM's names, kinds and labels, and counts what happened."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from loadtest.simulator.stats import Histogram, Page
from tests.support.recordings import FOLDER
from tests.support.simulator import FAST, engines, http

# Families that only an engine with a NIXL connector has.
BESIDE = {"vllm:nixl_num_kv_expired_reqs", "vllm:nixl_num_failed_transfers", "vllm:nixl_xfer_time_seconds"}


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text: str, name: str, **labels: str) -> float:
    found = [
        s.value
        for family in families(text).values()
        for s in family.samples
        if s.name == name and labels.items() <= s.labels.items()
    ]
    assert len(found) == 1, (name, labels, found)
    return found[0]


async def test_every_family_is_one_of_vllms_with_its_labels() -> None:
    known = families((FOLDER / "metrics" / "after_load.txt").read_text())
    async with engines(FAST, loras=("lora-a",)) as (engine,), http(engine.url) as client:
        await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3, "model": "lora-a"})
        answer = await client.get("/metrics")
    shown = families(answer.text)
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert shown.keys() - known.keys() == BESIDE
    for name in shown.keys() & known.keys():
        assert shown[name].type == known[name].type
        for mine in shown[name].samples:
            alike = [theirs for theirs in known[name].samples if theirs.name == mine.name]
            assert alike, mine.name
            assert set(mine.labels) <= set(alike[0].labels)
            if name != "vllm:cache_config_info":
                assert set(mine.labels) == set(alike[0].labels)


async def test_tokens_hits_and_ends_are_counted() -> None:
    async with engines(FAST, block_size=16) as (engine,), http(engine.url) as client:
        for _ in range(2):
            await client.post("/v1/completions", json={"prompt": list(range(50)), "max_tokens": 5})
        page = (await client.get("/metrics")).text
    assert value(page, "vllm:prompt_tokens_total") == 100
    assert value(page, "vllm:generation_tokens_total") == 10
    assert value(page, "vllm:prefix_cache_queries_total") == 100
    assert value(page, "vllm:prefix_cache_hits_total") == 48
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_compute") == 52
    assert value(page, "vllm:prompt_tokens_by_source_total", source="local_cache_hit") == 48
    assert value(page, "vllm:request_success_total", finished_reason="length") == 2
    assert value(page, "vllm:time_to_first_token_seconds_count") == 2
    assert value(page, "vllm:inter_token_latency_seconds_count") == 8
    assert value(page, "vllm:kv_cache_usage_perc") == 0
    assert value(page, "vllm:num_requests_running") == 0
    labels = families(page)["vllm:cache_config_info"].samples[0].labels
    assert (labels["block_size"], labels["enable_prefix_caching"]) == ("16", "True")


async def test_each_rank_has_its_series_and_its_cache() -> None:
    async with engines(FAST, dp_size=2) as (engine,), http(engine.url) as client:
        cached = []
        for rank in ("0", "0", "1", "1"):
            answer = await client.post(
                "/v1/completions", json={"prompt": list(range(200))}, headers={"X-data-parallel-rank": rank}
            )
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        page = (await client.get("/metrics")).text
    assert cached == [0, 192, 0, 192]
    for rank in ("0", "1"):
        assert value(page, "vllm:prompt_tokens_total", engine=rank) == 400


def test_a_histogram_is_cumulative_and_a_label_is_quoted() -> None:
    histogram = Histogram((1.0, 2.0))
    for observed in (0.5, 1.0, 1.5, 7.0):
        histogram.observe(observed)
    page = Page()
    page.histograms("h", "text", [({"a": 'x"\\\n'}, histogram)])
    family = families(page.render().decode())["h"]
    assert [s.value for s in family.samples] == [2, 3, 4, 4, 10]
    assert family.samples[0].labels["a"] == 'x"\\\n'
