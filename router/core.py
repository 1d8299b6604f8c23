"""The nouns, in the order a request meets them. PURE.

Everything here is a frozen value. Unknown is ``None``, never 0; every measured value names its unit and carries
the time it was taken, so that whoever reads it can judge its age. Times are seconds of the monotonic clock that
`router.app` hands out; token counts are tokens; nothing here is allocated per block or per chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import msgspec

from kvindex.index import Match

Headers = tuple[tuple[bytes, bytes], ...]
"""Header fields in wire order, names in lower case, repeated fields kept apart."""


class Api(StrEnum):
    """The generating surfaces whose prompts are tokenized and routed by prefix; OTHER is forwarded as it is."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OTHER = "other"


class Role(StrEnum):
    """What an endpoint may be chosen for. BOTH serves whole requests and either leg."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One engine address and rank: the unit of choice. Identity only; what is measured is in `EndpointState`."""

    id: str
    """Unique in the process and safe as a metric label: ``host:port`` or ``host:port/rank``."""
    url: str
    """``http(s)://host[:port][/prefix]`` without a trailing slash."""
    role: Role = Role.BOTH
    rank: int | None = None
    """Local data-parallel index to send as ``X-data-parallel-rank``; None when the engine has one rank."""
    api_key: str | None = None
    """Bearer token for this upstream; never logged, never shown."""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Endpoint({self.id}, {self.role.value})"


class Caller(msgspec.Struct, frozen=True):
    """Who asks, as far as it counts: what a request says of itself is in here by right only (`router.api.callers`)."""

    tenant: str = ""
    """Whom the request is counted for: a short printable word. Of a trusted caller any number of different ones may
    come. Empty: nobody in particular."""
    objective: str | None = None
    priority: int | None = None
    """Importance asked for with the body's ``priority``, in llm-d's order: higher is more important, 0 is ordinary (the
    body's number is vLLM's, lower is sooner, and has the other sign). None: none asked for, or no right to it."""
    key: str | None = None
    """The API key's name, never the key."""


NOBODY = Caller()


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request, reduced to what routing needs; the body stays bytes and is forwarded untouched.

    Values a client may send in any JSON type are kept as they came (``Any``): judging them is the engine's work.
    """

    request_id: str
    api: Api
    path: str
    """Path and query as they go upstream, e.g. ``/v1/chat/completions``."""
    method: str = "POST"
    body: bytes = b""
    headers: Headers = ()
    """What goes upstream: hop-by-hop, routing control and client credentials already taken out."""
    routing_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers that steer routing (session id, SLOs, ...), lower case, let through by the caller's rights."""
    caller: Caller = NOBODY
    model: str | None = None
    stream: bool = False
    max_tokens: int | None = None
    n: int = 1
    """Completions asked for per prompt."""
    include_usage: bool = False
    """The client asked for the usage chunk of a stream itself."""
    cache_salt: str | None = None
    fields: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The decoded fields that a prompt is rendered from (messages, prompt, tools, chat_template_kwargs, ...)."""
    arrived_at: float = 0.0
    deadline_at: float | None = None
    """When its answer must be whole, on the clock of `arrived_at`; None: no such time was given."""


class TokenSource(StrEnum):
    """Where token ids come from, from exact to guessed."""

    CLIENT = "client"
    """The client sent token ids."""
    LOCAL = "local"
    ENGINE = "engine"
    ESTIMATE = "estimate"
    """Bytes of text stand in for tokens: a label on metrics, usable for affinity and lengths, never exact."""
    NONE = "none"
    """Nothing to tokenize, or no plugin asked for it."""


class TokenizedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of the prompt and their chain of block hashes."""

    token_ids: Sequence[int]
    """``array('I')`` when there are any; empty with TokenSource.NONE."""
    source: TokenSource
    token_count: int
    """Prompt tokens, summed over a batch of prompts; an estimate with TokenSource.ESTIMATE."""
    block_size: int = 0
    """Tokens per block of `block_hashes`; 0 when there are none."""
    block_hashes: Sequence[int] = ()
    """One 64-bit key per full block, chained (`kvindex.hashing`)."""


EndpointMatch = Match
"""Leading blocks of one prompt that one endpoint holds: in any tier, and of these in device memory."""

NO_MATCH = EndpointMatch(0, 0)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of an endpoint's ``/v1/models``."""

    id: str
    root: str | None = None
    parent: str | None = None
    """Base model's served name for a LoRA adapter."""
    max_model_len: int | None = None
    raw: bytes = b"{}"
    """The entry's JSON as the engine sent it, for the merged ``/v1/models``."""


class Health(StrEnum):
    UNKNOWN = "unknown"
    """Not probed yet; may be chosen (a request finds out as fast as a probe)."""
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    """Finishes what it has; gets nothing new."""


class IndexState(StrEnum):
    """How far the KV index can be believed for an endpoint."""

    EXACT = "exact"
    """Fed by the engine's KV events, no gap."""
    APPROXIMATE = "approximate"
    """Fed by our own routing history."""


class EndpointMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What the last scrape of ``/metrics`` said, summed over the endpoint's rank; None where it said nothing."""

    taken_at: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """0..1."""
    running_loras: frozenset[str] = frozenset()
    waiting_loras: frozenset[str] = frozenset()
    max_loras: int | None = None


class EndpointState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of what is known about one endpoint; replaced whole by `router.pool`, never edited."""

    endpoint: Endpoint
    health: Health = Health.UNKNOWN
    models: Mapping[str, ModelCard] = msgspec.field(default_factory=dict)
    """Served model id -> card; empty until discovered (then the endpoint is taken to serve any model)."""
    block_size: int | None = None
    num_blocks: int | None = None
    """Device KV blocks of `block_size` tokens."""
    on_trial: bool = False
    """Failing requests took it out, a probe brought it back, and no request has been answered since: one at a time."""
    since: float | None = None
    """Monotonic seconds at which it came, or came back, into service with a cold cache; None: not known to have."""
    index: IndexState = IndexState.APPROXIMATE
    metrics: EndpointMetrics | None = None
    process_start: float | None = None
    """Unix seconds (``process_start_time_seconds``): the engine's incarnation."""
    version: str | None = None


class Inflight(msgspec.Struct, frozen=True):
    """What routers have on an endpoint now, counted by themselves and not scraped."""

    requests: int = 0
    prefill_tokens: int = 0
    """Uncached prompt tokens dispatched whose first token has not come, nor should have by what is known."""
    tokens: int = 0
    """Prompt tokens plus expected output tokens of everything dispatched and not yet ended."""


NO_INFLIGHT = Inflight()


class EngineEstimate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How fast one endpoint is and what it has to do, as `router.capacity` learnt it from what this router saw.

    Laws (what they are fitted to is told there), times in seconds:

        prefill of n tokens behind c cached ones:  overhead_s + token_s * n + pair_s * n * (c + n / 2)
        one decode step of b requests over k tokens of context:  step_base_s + step_seq_s * b + step_kv_s * k
        hand-off of n tokens of KV to this endpoint:  transfer_base_s + transfer_token_s * n

    A confidence is 0 (nothing but the prior) to 1.
    """

    overhead_s: float
    token_s: float
    pair_s: float
    prefill_confidence: float = 0.0
    step_base_s: float
    step_seq_s: float
    step_kv_s: float
    step_confidence: float = 0.0
    transfer_base_s: float
    transfer_token_s: float
    transfer_confidence: float = 0.0
    chunk: int
    """Prompt tokens that one step computes at most."""
    queued_s: float = 0.0
    """Prefill time of everything dispatched that has not given its first token, the oldest one whole."""
    queued_tokens: int = 0
    """Uncached tokens of the same."""
    head_s: float = 0.0
    """Of `queued_s`, the oldest one's."""
    head_at: float = 0.0
    """When its turn came."""
    requests: int = 0
    """Ours on the endpoint."""
    decoding: int = 0
    """Of these past their first token."""
    step_s: float = 0.0
    """One decode step with what decodes now; 0 when nothing does."""
    delayed_per_s: float = 0.0
    """Seconds that others will wait for a second of prefill behind a second of backlog (`router.capacity.pace`)."""
    output_tokens: float = 256.0
    """Expected of a request that does not say."""
    capacity_tokens: int = 0
    """KV space; 0 when unknown, and then the three below say nothing."""
    held_tokens: int = 0
    """Of it in use by requests in flight, their expected answers included."""
    free_tokens: int = 0
    """Never filled since the engine started."""
    missed_per_token: float = 0.0
    """Cached tokens that will be asked for in vain for each that takes the place of one (`router.capacity.reuse`)."""
    users: Mapping[int, int] = MappingProxyType({})
    """Of every `users_stride`-th block of the prompts in flight there, how many of them have it. A live view."""
    users_stride: int = 1


class Candidate(msgspec.Struct, frozen=True):
    """An endpoint as the scheduler sees it for one request."""

    state: EndpointState
    inflight: Inflight
    """All routers' that this one knows of."""
    match: EndpointMatch
    metrics_age: float | None
    """Seconds since `state.metrics` was taken; None when there are none."""
    estimate: EngineEstimate | None = None
    """None where no engine model is kept."""
    others: Inflight = NO_INFLIGHT
    """Of `inflight`, other routers', which `estimate` does not know of."""

    @property
    def endpoint(self) -> Endpoint:
        return self.state.endpoint

    def matched_tokens(self, prompt: TokenizedPrompt) -> int:
        """Prompt tokens that the endpoint should find cached: it always computes at least the last token's block."""
        size = prompt.block_size
        return min(self.match.blocks * size, max(prompt.token_count - 1, 0) // size * size) if size else 0

    @property
    def id(self) -> str:
        return self.state.endpoint.id


class Leg(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill and decode apart or on one endpoint, as a decider that reckons saw it. Seconds; costs are its own."""

    prefill: str
    """Endpoint id, as are `decode` and `whole`."""
    decode: str
    prefill_cost: float
    decode_cost: float
    """With the transfer."""
    apart_ttft_s: float
    """From the decision to the first token, both legs."""
    whole: str
    """Who would do all of it."""
    whole_cost: float
    whole_ttft_s: float


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves, in which order to fall back, and why."""

    decode: tuple[Candidate, ...]
    """Best first; the rest are the ordered fallbacks. Never empty."""
    prefill: tuple[Candidate, ...] = ()
    """Empty: the decode endpoint prefills locally. Else best first with ordered fallbacks."""
    reason: str = ""
    """A short word from a bounded set, used as a metric label: ``aggregated``, ``pd``, ``pd-cached``, ..."""
    compared: Comparison | None = None
    """What the decider reckoned; None: it was not asked, or decides without."""
    scores: Mapping[str, Mapping[str, float]] = msgspec.field(default_factory=dict)
    """Endpoint id -> plugin name -> weighted score, for explanation."""
