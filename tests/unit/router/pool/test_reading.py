from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pool.reading import read_page
from tests.support.pool import page

FIXTURES = os.environ.get("KVROUTER_FIXTURES")
recorded = pytest.mark.skipif(not FIXTURES, reason="KVROUTER_FIXTURES does not name a folder of recorded pages")


def fixture(name: str) -> str:
    return Path(FIXTURES or "", "metrics", name).read_text()


@recorded
def test_a_recorded_page_under_load() -> None:
    reading = read_page(fixture("load_2.txt"), 7.0)
    metrics = reading.metrics(None)
    assert (metrics.running, metrics.waiting, metrics.kv_usage, metrics.taken_at) == (11, 12, 1.0, 7.0)
    engine = reading.engines[0]
    assert (engine.block_size, engine.num_blocks, engine.prefix_caching) == (32, 72, True)
    assert reading.process_start == 1795986072.7
    assert not reading.asleep


@recorded
def test_of_the_adapter_series_that_stay_on_a_page_the_newest_counts() -> None:
    reading = read_page(fixture("load_2.txt"), 0.0)
    assert reading.running_loras == {"lora-a", "lora-b"}
    after = read_page(fixture("after_load.txt"), 0.0)
    assert (after.running_loras, after.waiting_loras, after.max_loras) == (frozenset(), frozenset(), 2)


@recorded
def test_a_recorded_page_of_two_ranks_gives_each_its_own_and_says_no_incarnation() -> None:
    reading = read_page(fixture("dp2.txt"), 0.0)
    assert sorted(reading.engines) == [0, 1]
    assert reading.labelled
    assert reading.process_start is None
    # num_gpu_blocks says 256 for both ranks together; each was started with 128.
    assert {engine.num_blocks for engine in reading.engines.values()} == {128}


def test_ranks_are_apart_and_together() -> None:
    reading = read_page(page(running=1, waiting=2, usage=0.5, engines=3, first_engine=4), 0.0)
    assert [reading.metrics(rank).running for rank in (4, 5, 6)] == [1, 2, 3]
    together = reading.metrics(None)
    assert (together.running, together.waiting, together.kv_usage) == (6, 6, 0.5)
    assert reading.metrics(0).running is None


def test_several_models_of_one_engine_add_up() -> None:
    reading = read_page(
        'vllm:num_requests_running{engine="0",model_name="a"} 1\n'
        'vllm:num_requests_running{engine="0",model_name="b"} 2\n',
        0.0,
    )
    assert reading.metrics(0).running == 3


@pytest.mark.parametrize(
    ("labels", "block_size", "num_blocks"),
    [
        ('block_size="16",num_gpu_blocks="100"', 16, 100),
        ('block_size="16",num_gpu_blocks="200",kv_cache_size_tokens="1600"', 16, 100),
        ('block_size="64",hash_block_size="16",num_gpu_blocks="100"', 16, 400),
        ('block_size="64",hash_block_size="None",num_gpu_blocks="100"', 64, 100),
        ('block_size="16",num_gpu_blocks="None"', 16, None),
        ('block_size="None",num_gpu_blocks="100"', None, None),
        ('block_size="16",num_gpu_blocks="100",_block_size_resolved="False"', None, None),
        ('block_size="0",num_gpu_blocks="100"', None, None),
    ],
)
def test_tok_15_blocks_are_counted_as_events_count_them(
    labels: str, block_size: int | None, num_blocks: int | None
) -> None:
    engine = read_page(f'vllm:cache_config_info{{engine="0",{labels}}} 1.0\n', 0.0).engines[0]
    assert (engine.block_size, engine.num_blocks) == (block_size, num_blocks)


def test_sleep_and_switched_off_prefix_caching_are_seen() -> None:
    reading = read_page(
        'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0.0\n'
        'vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 1.0\n'
        'vllm:cache_config_info{engine="0",block_size="16",enable_prefix_caching="False"} 1.0\n',
        0.0,
    )
    assert reading.asleep
    assert reading.engines[0].prefix_caching is False


def test_other_engines_names_mean_the_same() -> None:
    reading = read_page(
        'sglang:num_running_reqs{model_name="m"} 3\nsglang:num_queue_reqs{model_name="m"} 2\n'
        'sglang:token_usage{model_name="m"} 0.25\n',
        0.0,
    )
    metrics = reading.metrics(None)
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == (3, 2, 0.25)
    assert not reading.labelled
    assert read_page('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', 0.0).metrics(None).kv_usage == 0.5


def test_what_a_page_does_not_say_is_unknown_and_not_zero() -> None:
    metrics = read_page("# nothing\n", 1.0).metrics(None)
    assert (metrics.running, metrics.waiting, metrics.kv_usage, metrics.max_loras) == (None, None, None, None)


IMPOSSIBLE = ("NaN", "+Inf", "-Inf", "1e400", "-1", "-5", "1e18")


@pytest.mark.parametrize("value", IMPOSSIBLE)
@pytest.mark.parametrize(
    "name", ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total"]
)
def test_a_value_that_cannot_be_counts_as_not_told_and_hides_nothing_else(name: str, value: str) -> None:
    sane = {"num_requests_running": 1.0, "num_requests_waiting": 2.0, "kv_cache_usage_perc": 0.5}
    text = "".join(f'vllm:{each}{{engine="0"}} {value if each == name else said}\n' for each, said in sane.items())
    reading = read_page(text + (f'vllm:{name}{{engine="0"}} {value}\n' if name not in sane else ""), 0.0)
    expected = tuple(None if each == name else said for each, said in sane.items())
    metrics = reading.metrics(None)
    assert (metrics.running, metrics.waiting, metrics.kv_usage) == expected
    assert reading.engines[0].work is None
    assert list(reading.impossible) == [f"vllm:{name}"]


@pytest.mark.parametrize(("value", "usage"), [("1.0", 1.0), ("1.0000001", 1.0), ("85", None), ("0", 0.0)])
def test_a_share_is_a_share_and_no_percentage(value: str, usage: float | None) -> None:
    assert read_page(f'vllm:kv_cache_usage_perc{{engine="0"}} {value}\n', 0.0).metrics(None).kv_usage == usage


def test_a_start_or_a_sleep_that_is_no_number_is_none() -> None:
    reading = read_page(
        'process_start_time_seconds NaN\nvllm:engine_sleep_state{engine="0",sleep_state="awake"} NaN\n', 0.0
    )
    assert reading.process_start is None
    assert not reading.asleep
    assert not reading.engines


@given(st.lists(st.floats(), min_size=6, max_size=6))
def test_whatever_a_page_says_its_figures_can_be(values: list[float]) -> None:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    lines = [
        f'vllm:{name}{{engine="{rank}"}} {values[rank * 3 + number]!r}\n'
        for rank in range(2)
        for number, name in enumerate(names)
    ]
    metrics = read_page("".join(lines), 0.0).metrics(None)
    for figure in (metrics.running, metrics.waiting):
        assert figure is None or 0.0 <= figure <= 2.0**54
    assert metrics.kv_usage is None or 0.0 <= metrics.kv_usage <= 1.0


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_no_label_value_raises(engine: str, size: str, loras: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    read_page(
        f"vllm:cache_config_info{{engine={quoted(engine)},block_size={quoted(size)},num_gpu_blocks={quoted(size)}}} 1\n"
        f"vllm:lora_requests_info{{running_lora_adapters={quoted(loras)},max_lora={quoted(size)}}} 1\n",
        0.0,
    ).metrics(None)
