"""GET /metrics: vLLM's metric names and labels over the state of the ranks."""

from __future__ import annotations

import time
from collections.abc import Callable

from loadtest.simulator.driver import RankDriver, RankStats
from loadtest.simulator.engine import Counters
from loadtest.simulator.node import SimEngine
from loadtest.simulator.stats import Histogram, Page

_COUNTERS: tuple[tuple[str, str, Callable[[Counters], float]], ...] = (
    (
        "vllm:prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        lambda c: c.prefix_queries,
    ),
    ("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", lambda c: c.prefix_hits),
    ("vllm:external_prefix_cache_queries", "Queried tokens of other engines' caches.", lambda c: c.external_queries),
    ("vllm:external_prefix_cache_hits", "Tokens found in other engines' caches.", lambda c: c.external_hits),
    ("vllm:num_preemptions", "Cumulative number of preemptions.", lambda _c: 0),
    ("vllm:prompt_tokens", "Number of prefill tokens processed.", lambda c: c.prompt_tokens),
    ("vllm:prompt_tokens_cached", "Prompt tokens found in a cache.", lambda c: c.local_hits + c.transferred),
    ("vllm:generation_tokens", "Number of generation tokens processed.", lambda c: c.generation_tokens),
    ("vllm:nixl_num_kv_expired_reqs", "Hand-offs whose lease ended unread.", lambda c: c.expired_pins),
)

_HISTOGRAMS: tuple[tuple[str, str, Callable[[RankStats], Histogram]], ...] = (
    ("vllm:request_prompt_tokens", "Number of prefill tokens processed.", lambda s: s.prompt_tokens),
    ("vllm:request_generation_tokens", "Number of generation tokens processed.", lambda s: s.generation_tokens),
    ("vllm:iteration_tokens_total", "Tokens per engine step.", lambda s: s.step_tokens),
    ("vllm:time_to_first_token_seconds", "Time to first token in seconds.", lambda s: s.ttft),
    ("vllm:inter_token_latency_seconds", "Inter-token latency in seconds.", lambda s: s.itl),
    ("vllm:request_time_per_output_token_seconds", "Time per output token of a request.", lambda s: s.tpot),
    ("vllm:e2e_request_latency_seconds", "End to end request latency in seconds.", lambda s: s.e2e),
    ("vllm:request_queue_time_seconds", "Time spent in WAITING phase.", lambda s: s.queue),
    ("vllm:request_inference_time_seconds", "Time spent in RUNNING phase.", lambda s: s.inference),
    ("vllm:request_prefill_time_seconds", "Time spent in PREFILL phase.", lambda s: s.prefill),
    ("vllm:request_decode_time_seconds", "Time spent in DECODE phase.", lambda s: s.decode),
    ("vllm:nixl_xfer_time_seconds", "Duration of KV transfers.", lambda s: s.transfers),
)


def render_metrics(engine: SimEngine) -> bytes:
    page = Page()
    page.samples(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        [({}, engine.started_at)],
    )
    ranks = [({"engine": str(d.rank), "model_name": engine.config.model}, d) for d in engine.ranks]
    _gauges(page, engine, ranks)
    for name, text, read in _COUNTERS:
        page.samples(f"{name}_total", "counter", text, [(labels, read(d.core.counters)) for labels, d in ranks])
    _labelled_counters(page, engine, ranks)
    for name, text, pick in _HISTOGRAMS:
        page.histograms(name, text, [(labels, pick(d.stats)) for labels, d in ranks])
    _info(page, engine, ranks)
    return page.render()


Ranks = list[tuple[dict[str, str], RankDriver]]


def _gauges(page: Page, engine: SimEngine, ranks: Ranks) -> None:
    hidden = engine.paused or engine.sleep_level > 0
    now = time.monotonic()
    for _, d in ranks:
        d.core.expire_pins(now)
    rows = [(labels, 0 if hidden else d.core.num_running) for labels, d in ranks]
    page.samples("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", rows)
    rows = [(labels, 0 if hidden else d.core.num_waiting) for labels, d in ranks]
    page.samples("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", rows)
    rows = []
    for labels, d in ranks:
        deferred = 0 if hidden else d.core.num_loading
        rows.append(({**labels, "reason": "capacity"}, (0 if hidden else d.core.num_waiting) - deferred))
        rows.append(({**labels, "reason": "deferred"}, deferred))
    page.samples("vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.", rows)
    asleep = {0: "awake", 1: "weights_offloaded"}.get(engine.sleep_level, "discard_all")
    page.samples(
        "vllm:engine_sleep_state",
        "gauge",
        "Engine sleep state.",
        [
            ({**labels, "sleep_state": state}, state == asleep)
            for labels, _ in ranks
            for state in ("awake", "weights_offloaded", "discard_all")
        ],
    )
    usage = [(labels, d.core.cache.used_fraction) for labels, d in ranks]
    page.samples("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", usage)


def _labelled_counters(page: Page, engine: SimEngine, ranks: Ranks) -> None:
    rows: list[tuple[dict[str, str], float]] = []
    cached: list[tuple[dict[str, str], float]] = []
    ended: list[tuple[dict[str, str], float]] = []
    for labels, d in ranks:
        c = d.core.counters
        sources = {
            "local_compute": c.local_compute,
            "local_cache_hit": c.local_hits,
            "external_kv_transfer": c.transferred,
        }
        rows += [({**labels, "source": source}, value) for source, value in sources.items()]
        tiers = {"device": c.local_hits, "host": 0, "p2p": c.transferred, "disk": 0, "external_unspecified": 0}
        cached += [({**labels, "source": source}, value) for source, value in tiers.items()]
        ended += [({**labels, "finished_reason": reason}, count) for reason, count in d.stats.finished.items()]
    page.samples("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by source.", rows)
    page.samples("vllm:prompt_tokens_cached_by_source_total", "counter", "Cached prompt tokens by source.", cached)
    page.samples("vllm:request_success_total", "counter", "Count of successfully processed requests.", ended)
    failed = [(labels, d.stats.failed_transfers) for labels, d in ranks]
    page.samples("vllm:nixl_num_failed_transfers_total", "counter", "Failed KV transfers.", failed)
    rejections = [
        ({"model_name": engine.config.model, "reason": "max_num_queued_reqs"}, engine.rejected),
        ({"model_name": engine.config.model, "reason": "max_num_queued_tokens"}, 0),
    ]
    page.samples("vllm:admission_rejections_total", "counter", "Requests rejected at admission.", rejections)


def _info(page: Page, engine: SimEngine, ranks: Ranks) -> None:
    if engine.loras:
        engine.note_loras()
        rows = [
            ({"max_lora": str(engine.config.max_loras), "running_lora_adapters": r, "waiting_lora_adapters": w}, at)
            for (r, w), at in engine.lora_seen.items()
        ]
        page.samples("vllm:lora_requests_info", "gauge", "Running stats on lora requests.", rows)
    config = engine.config
    tokens = engine.num_gpu_blocks * config.block_size
    cache = {
        "block_size": str(config.block_size),
        "cache_dtype": "auto",
        "effective_attention_block_size": str(config.block_size),
        "enable_prefix_caching": "True",
        "gpu_memory_utilization": "0.92",
        "hash_block_size": "None",
        "kv_cache_max_concurrency": f"{tokens / engine.max_model_len:g}",
        "kv_cache_size_tokens": str(tokens),
        "num_cpu_blocks": "None",
        "num_gpu_blocks": str(engine.num_gpu_blocks),
        "num_gpu_blocks_override": str(config.num_gpu_blocks),
        "prefix_caching_hash_algo": "sha256_cbor",
        "sliding_window": "None",
        "user_specified_block_size": "True",
    }
    infos = [({**cache, "engine": labels["engine"]}, 1) for labels, _ in ranks]
    page.samples("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", infos)
