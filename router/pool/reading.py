"""What a ``/metrics`` page says about an engine: vLLM's names, its older ones, and SGLang's. PURE.

A value that its metric cannot have counts as not told: believed, it would make an engine full, or idle, for ever.

Sources: vLLM 0.32 pages as served; SGLang 0.5's names as its package lists them (not seen live).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from router.core import EndpointMetrics
from router.wire.prometheus import MetricFilter, Sample

_RUNNING = frozenset({"vllm:num_requests_running", "sglang:num_running_reqs"})
_WAITING = frozenset({"vllm:num_requests_waiting", "sglang:num_queue_reqs"})
_USAGE = frozenset({"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"})
_LORA = "vllm:lora_requests_info"
_CACHE = "vllm:cache_config_info"
_SLEEP = "vllm:engine_sleep_state"
_START = "process_start_time_seconds"
_WORK = frozenset(
    {
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:iteration_tokens_total_count",
        "sglang:prompt_tokens_total",
        "sglang:generation_tokens_total",
    }
)
_MOST = 2.0**53
"""Of anything that is counted, and of seconds."""
_MOST_USAGE = 1.1
"""A share of 1, and what rounding and blocks in transit may put on it; a percentage is none."""
_FILTER = MetricFilter({*_RUNNING, *_WAITING, *_USAGE, *_WORK, _LORA, _CACHE, _SLEEP, _START})


class EngineReading(msgspec.Struct, kw_only=True):
    """One engine (rank) on a page. None: the page does not say."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    block_size: int | None = None
    """Tokens in a block as prefix hashes and KV events count them."""
    num_blocks: int | None = None
    """Device blocks of `block_size` tokens."""
    prefix_caching: bool | None = None
    awake: bool | None = None
    work: float | None = None
    """Sum of what only ever grows with work done: tokens and steps."""

    def signs(self) -> tuple[float | None, ...]:
        return (self.work, self.running, self.waiting, self.kv_usage)


class PageReading(msgspec.Struct, frozen=True, kw_only=True):
    """One page. `taken_at` is the router's monotonic clock at the time of asking."""

    taken_at: float
    engines: Mapping[int, EngineReading] = msgspec.field(default_factory=dict)
    """Global rank -> reading; a page without engine labels counts as rank 0."""
    labelled: bool = False
    """The page names its engines."""
    process_start: float | None = None
    """Unix seconds. A server with several API processes does not say."""
    running_loras: frozenset[str] = frozenset()
    waiting_loras: frozenset[str] = frozenset()
    max_loras: int | None = None
    impossible: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Metric -> the last value on the page that it cannot have, and that is read nowhere."""

    @property
    def asleep(self) -> bool:
        return any(engine.awake is False for engine in self.engines.values())

    @property
    def pulse(self) -> tuple[float | None, ...]:
        """What changes while the engines work: of a long prefill, for a while, the cache's use alone."""
        engines = self.engines.values()
        return tuple(_total(values) for values in zip(*(engine.signs() for engine in engines), strict=True))

    def metrics(self, global_rank: int | None) -> EndpointMetrics:
        """Of one rank, or with None of all together (sums; the mean for the cache's use)."""
        engines = [engine for rank, engine in self.engines.items() if global_rank is None or rank == global_rank]
        usage = [engine.kv_usage for engine in engines if engine.kv_usage is not None]
        return EndpointMetrics(
            taken_at=self.taken_at,
            running=_total(engine.running for engine in engines),
            waiting=_total(engine.waiting for engine in engines),
            kv_usage=sum(usage) / len(usage) if usage else None,
            running_loras=self.running_loras,
            waiting_loras=self.waiting_loras,
            max_loras=self.max_loras,
        )


def read_page(page: str, taken_at: float) -> PageReading:
    engines: dict[int, EngineReading] = {}
    labelled = False
    process_start: float | None = None
    lora: Sample | None = None
    impossible: dict[str, float] = {}
    for sample in _FILTER.read(page):
        name = sample.name
        if not _possible(name, sample.value):
            impossible[name] = sample.value
            continue
        if name == _START:
            process_start = sample.value
            continue
        if name == _LORA:
            # Series of earlier states stay on the page; the value is the time of writing.
            if lora is None or sample.value >= lora.value:
                lora = sample
            continue
        rank, named = _rank(sample.labels)
        labelled = labelled or named
        _note(engines.setdefault(rank, EngineReading()), sample)
    labels = lora.labels if lora is not None else {}
    return PageReading(
        taken_at=taken_at,
        engines=engines,
        labelled=labelled,
        process_start=process_start,
        running_loras=_names(labels.get("running_lora_adapters", "")),
        waiting_loras=_names(labels.get("waiting_lora_adapters", "")),
        max_loras=_count(labels.get("max_lora")),
        impossible=impossible,
    )


def _possible(name: str, value: float) -> bool:
    """Whether the metric can have that value (false for what is not a number); of one whose labels alone are read, all
    can be."""
    return name == _CACHE or 0.0 <= value <= (_MOST_USAGE if name in _USAGE else _MOST)


def _note(engine: EngineReading, sample: Sample) -> None:
    name, value = sample.name, sample.value
    if name in _RUNNING:
        engine.running = (engine.running or 0.0) + value
    elif name in _WAITING:
        engine.waiting = (engine.waiting or 0.0) + value
    elif name in _USAGE:
        engine.kv_usage = max(engine.kv_usage or 0.0, min(value, 1.0))
    elif name in _WORK:
        engine.work = (engine.work or 0.0) + value
    elif name == _SLEEP:
        if sample.labels.get("sleep_state") == "awake":
            engine.awake = value != 0
    else:
        _note_cache(engine, sample.labels)


def _note_cache(engine: EngineReading, labels: Mapping[str, str]) -> None:
    if labels.get("_block_size_resolved") == "False":
        return
    physical = _count(labels.get("block_size"))
    # Hybrid models hash finer than they allocate; the label is "None" where both are the same.
    engine.block_size = _count(labels.get("hash_block_size")) or physical
    blocks, tokens = _count(labels.get("num_gpu_blocks")), _count(labels.get("kv_cache_size_tokens"))
    if engine.block_size is not None:
        # With data parallelism num_gpu_blocks is the sum over the ranks, the size in tokens is the rank's own.
        if tokens is None and blocks is not None and physical is not None:
            tokens = blocks * physical
        engine.num_blocks = tokens // engine.block_size if tokens is not None else None
    caching = labels.get("enable_prefix_caching")
    if caching in ("True", "False"):
        engine.prefix_caching = caching == "True"


def _rank(labels: Mapping[str, str]) -> tuple[int, bool]:
    label = labels.get("engine", labels.get("dp_rank", ""))
    return (int(label), True) if label.isascii() and label.isdigit() and len(label) < 6 else (0, False)


def _count(label: str | None) -> int | None:
    if label is None or not (label.isascii() and label.isdigit()) or len(label) > 18:
        return None
    return int(label) or None


def _names(label: str) -> frozenset[str]:
    return frozenset(name for part in label.split(",") if (name := part.strip()))


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
