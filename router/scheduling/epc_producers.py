"""Producers of llm-d's EndpointPickerConfig: what they say about tokenization and index. PURE.

A producer has no counterpart here (there is one index and one tokenization, configured on their own): its parameters
become `Hints`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from router.errors import ConfigError

P = TypeVar("P")


class Hints(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration says about tokenization and index; None where it says nothing."""

    index: Literal["exact", "approximate"] | None = None
    block_size: int | None = None
    """Tokens."""
    speculative: bool | None = None
    speculative_ttl_s: float | None = None
    max_prefix_tokens: int | None = None
    """Longer prefixes are matched up to here."""
    lru_blocks: int | None = None
    """Blocks per endpoint that an approximate index remembers."""
    kv_events_port: int | None = None
    tokenizer: str | None = None
    """Model whose tokenizer to use."""
    render_url: str | None = None


class _Lenient(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A nested object of which only some keys mean something here."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Parameters of a producer: an unknown key is refused."""


class _TokenProcessor(Strict, frozen=True):
    block_size: int | None = None
    block_size_tokens: int | None = None
    hash_seed: str | None = None
    hash_algorithm: str | None = None


class _PodDiscovery(_Lenient, frozen=True):
    socket_port: int | None = None


class _KvEvents(_Lenient, frozen=True):
    engine_type: Literal["vllm"] = "vllm"
    pod_discovery_config: _PodDiscovery = _PodDiscovery()


class _TokenizersPool(_Lenient, frozen=True):
    model_name: str | None = None


class _Indexer(_Lenient, frozen=True):
    token_processor_config: _TokenProcessor = _TokenProcessor()
    tokenizers_pool_config: _TokenizersPool | None = None


class _PreciseProducer(Strict, frozen=True):
    token_processor_config: _TokenProcessor = _TokenProcessor()
    indexer_config: _Indexer = _Indexer()
    kv_events_config: _KvEvents = _KvEvents()
    speculative_indexing: bool = False
    speculative_ttl: str | None = msgspec.field(default=None, name="speculativeTTL")

    def hints(self) -> Hints:
        tokens, nested = self.token_processor_config, self.indexer_config.token_processor_config
        pool = self.indexer_config.tokenizers_pool_config
        return Hints(
            index="exact",
            block_size=tokens.block_size_tokens or tokens.block_size or nested.block_size_tokens or nested.block_size,
            speculative=self.speculative_indexing,
            speculative_ttl_s=None if self.speculative_ttl is None else seconds(self.speculative_ttl),
            kv_events_port=self.kv_events_config.pod_discovery_config.socket_port,
            tokenizer=None if pool is None else pool.model_name,
        )


class _ApproxProducer(Strict, frozen=True):
    auto_tune: bool = True
    block_size_tokens: int = 0
    block_size: int | None = None
    hash_block_size: int | None = None
    max_prefix_blocks_to_match: int = 0
    max_prefix_tokens_to_match: int = 0
    lru_capacity_per_server: int = 0

    def hints(self) -> Hints:
        # blockSize and hashBlockSize count characters in the versions that have them: they say nothing about tokens.
        size = self.block_size_tokens or None
        blocks = self.max_prefix_blocks_to_match
        return Hints(
            index="approximate",
            block_size=size,
            max_prefix_tokens=self.max_prefix_tokens_to_match or (blocks * size if size and blocks else None),
            lru_blocks=self.lru_capacity_per_server or None,
        )


class _Render(_Lenient, frozen=True):
    url: str | None = None


class _TokenProducer(_Lenient, frozen=True):
    model_name: str | None = None
    vllm: _Render = _Render()

    def hints(self) -> Hints:
        return Hints(tokenizer=self.model_name, render_url=self.vllm.url)


class _InflightProducer(Strict, frozen=True):
    add_estimated_output_tokens: bool = False
    max_estimated_output_tokens: int | None = None
    prefix_match_info_producer_name: str | None = None

    def hints(self) -> Hints:
        return Hints()


_Producer = _PreciseProducer | _ApproxProducer | _TokenProducer | _InflightProducer

_PRODUCERS: Mapping[str, type[_Producer]] = {
    "approx-prefix-cache-producer": _ApproxProducer,
    "inflight-load-producer": _InflightProducer,
    "precise-prefix-cache-producer": _PreciseProducer,
    "precise-prefix-cache-scorer": _PreciseProducer,
    "token-producer": _TokenProducer,
    "tokenizer": _TokenProducer,
}

LEGACY_KEYS = frozenset(_ApproxProducer.__struct_encode_fields__)
"""Keys that prefix-cache-scorer took itself before its producer was split off."""


def is_producer(type_: str) -> bool:
    return type_ in _PRODUCERS


def producer_hints(type_: str, parameters: Mapping[str, Any]) -> Hints:
    """Raises `ConfigError` naming the parameter."""
    return convert(parameters, _PRODUCERS[type_]).hints()


def convert(parameters: Mapping[str, Any], into: type[P]) -> P:
    """Parameters as a struct. Raises `ConfigError` naming the key."""
    try:
        return msgspec.convert(dict(parameters), into)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{error}: mend it or remove it") from None


_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")


def seconds(text: str) -> float:
    """A Go duration (``2s``, ``1m30s``, ``500ms``) in seconds. Raises `ConfigError`."""
    if not text or _PART.sub("", text):
        raise ConfigError(f"{text!r} is not a duration: write one like 2s, 500ms or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
