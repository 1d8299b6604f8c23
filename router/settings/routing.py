"""Settings of how a request finds its engines: tokens, index, policy, hand-off, retries. PURE."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, SecretStr

from kvindex.redis_address import parse_address
from router.scheduling.config import SchedulingSettings
from router.settings.section import Section
from router.settings.words import Count, CountOrZero, Seconds, SecondsOrZero


def _redis_url(value: SecretStr) -> SecretStr:
    parse_address(value.get_secret_value())
    return value


class TokenizationSettings(Section):
    """Prompts as token ids."""

    default: str | None = None
    """Tokenizer of every model that `models` does not name: a folder or a hub id; null: the model's root as the engine
    tells it, if that is a folder here or lies in the hub's cache."""
    models: dict[str, str] = Field(default_factory=dict)
    """Served model name (or root) to tokenizer: a folder or a hub id, loaded at the start."""
    remote: bool = True
    """Ask an engine's `/tokenize` when there is no local tokenizer."""
    estimate: bool = True
    """Estimate from the text when there is neither; labelled as such, never taken for exact."""
    inline_max_bytes: CountOrZero = 16384
    """Prompts up to this size are tokenized at once, larger ones in a worker."""
    workers: Count = 2
    """Worker threads for large prompts."""
    queue: Count = 64
    """Large prompts that may wait for a worker; one more is estimated."""


class IndexSettings(Section):
    """The KV index."""

    backend: Literal["auto", "memory", "redis"] = "auto"
    """`memory`: each router its own; `redis`: shared by all routers with the same `redis.namespace`; `auto`: `redis`
    where `redis.url` is set."""
    block_size: Literal["auto"] | Count = "auto"
    """Tokens a block; `auto`: what the engines report."""
    speculative_ttl_s: Seconds = 2.0
    """How long a dispatched prompt counts as cached before the engine's own events must say so."""
    approximate_ttl_s: Seconds = 600.0
    """The same for engines without KV events, whose cache is guessed from what was sent to them."""
    max_blocks: Count = 4_000_000
    """Blocks remembered over all endpoints."""


class RedisSettings(Section):
    """Shared state of several routers."""

    url: Annotated[SecretStr, AfterValidator(_redis_url)] | None = None
    """`redis://[user:password@]host:port/db`, `redis+sentinel://...@host:port,host:port/service`,
    `redis+cluster://...@host:port,host:port` (each with `rediss` for TLS) or `unix://path`."""
    ca_file: str | None = None
    """Certificate authorities (PEM) to check a TLS server's certificate against; null: the system's."""
    client_cert_file: str | None = None
    """Certificate chain (PEM) to show a TLS server that asks for one."""
    client_key_file: str | None = None
    """Its private key, when it is in a file of its own."""
    namespace: str = Field(default="kvrouter", pattern=r"^[A-Za-z0-9._:\-]{1,64}$")
    """Prefix of every key; routers with the same one share an index."""
    command_timeout_s: Seconds = 0.5
    """Time for a connection to stand and for each command. No request waits for Redis; past this the router goes on
    from memory and tries again."""


class SchedulingTree(SchedulingSettings):
    """Which plugins choose. See `docs/plugins.md`."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    endpoint_picker_config: str | None = None
    """An llm-d `EndpointPickerConfig` (YAML) to take plugins, profiles and decider from instead."""


class PdSettings(Section):
    """Prefill on one engine, decode on another."""

    enabled: bool | Literal["auto"] = "auto"
    """`auto`: when there is an endpoint of role `prefill`."""
    retries: int = Field(default=1, ge=0, le=16)
    """Other prefill endpoints to try before the decode endpoint prefills by itself."""
    prefill_timeout_s: Seconds = 60.0
    """Time for all of the prefill leg's answer."""


class RetrySettings(Section):
    """What happens when an engine fails before its first byte."""

    max_attempts: int = Field(default=3, ge=1, le=16)
    """Endpoints tried for one request, the first included."""
    on_status: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (502, 503, 504)
    """Engine statuses that count as failed and go to the next endpoint."""
    backoff_ms: SecondsOrZero = 25.0
    """Pause before the second attempt, doubled for each further one, with jitter."""
    backoff_max_ms: SecondsOrZero = 1000.0
    """Longest such pause."""
    within_s: Seconds = 60.0
    """No further attempt begins later than this after the request arrived."""
    budget_ratio: float = Field(default=0.2, ge=0, le=1)
    """Retries allowed for each request of the last 10 s, over `budget_reserve`; past both, the first failure is the
    client's answer: when everything fails, retries must not multiply the load."""
    budget_reserve: CountOrZero = 100
    """Retries allowed in 10 s however few requests there are."""
    continue_streams: bool = False
    """Let another engine go on with a stream that broke off after its beginning, where it can do so exactly from the
    tokens that the client has (`docs/operations.md`). Engines are then asked for token ids (`return_token_ids`), which
    are taken out of the stream again."""
