"""EngineCore: the scheduler of one simulated rank as a state machine without a clock. PURE.

`schedule` decides what the next step carries and how long it takes; `complete` applies it. Between the two the caller
lets that much time pass: a driver on an event loop sleeps, a replay moves its own clock. The order of things is vLLM's:
running requests first, then the waiting queue in order, chunked prefill within a token budget a step, prefix hits at
admission, blocks cached as the step that fills them is scheduled. There is no preemption: a request is admitted when
the blocks for its whole planned answer can be had.
"""

from __future__ import annotations

import enum
from bisect import insort
from collections.abc import Sequence

import msgspec

from loadtest.simulator.blocks import BlockCache
from loadtest.simulator.hashing import BlockHash, ExtraKeys, block_hash, extra_keys
from loadtest.simulator.timing import EngineProfile


class Phase(enum.Enum):
    """Where a request is."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    FINISHED = "finished"
    ABORTED = "aborted"


class Request:
    """One sequence: a prompt, the answer it will get, and how far it has come.

    Times are the caller's clock, None until they happen.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "cached_tokens",
        "computed",
        "external_tokens",
        "filled",
        "finished_at",
        "first_token_at",
        "generated",
        "hashes",
        "hold",
        "last_token_at",
        "lora",
        "order",
        "phase",
        "priority",
        "prompt_len",
        "ready",
        "remote",
        "request_id",
        "salt",
        "scheduled_at",
        "session_id",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        prompt: Sequence[int],
        output: Sequence[int],
        *,
        lora: tuple[int, str] | None = None,
        salt: str | None = None,
        session_id: str | None = None,
        priority: int = 0,
        hold: bool = False,
        remote: bool = False,
    ) -> None:
        self.request_id = request_id
        self.tokens = [*prompt, *output]
        self.prompt_len = len(prompt)
        self.lora = lora
        self.salt = salt
        self.session_id = session_id
        self.priority = priority
        self.hold = hold
        """Keep the blocks pinned after the end, for another engine to read."""
        self.remote = remote
        """The prompt's KV is to be read from another engine."""
        self.phase = Phase.WAITING
        self.order = (0, 0)
        self.ready = False
        self.blocks: list[int] = []
        self.hashes: list[BlockHash] = []
        self.filled = 0
        self.computed = 0
        self.generated = 0
        self.cached_tokens = 0
        self.external_tokens = 0
        self.arrival = 0.0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def alive(self) -> bool:
        return self.phase not in (Phase.FINISHED, Phase.ABORTED)

    def extra(self, index: int) -> ExtraKeys:
        return extra_keys(index, self.lora[1] if self.lora else None, self.salt)

    def hash_blocks(self, count: int, block_size: int) -> list[BlockHash]:
        """The hashes of the first `count` full blocks, computed as far as needed."""
        hashes = self.hashes
        while len(hashes) < count:
            i = len(hashes)
            parent = hashes[-1] if hashes else None
            hashes.append(block_hash(parent, self.tokens[i * block_size : (i + 1) * block_size], self.extra(i)))
        return hashes[:count]


class Step(msgspec.Struct, frozen=True):
    """What one forward pass carries.

    `loads` are requests that began to read their KV from another engine; they cost the step nothing.
    """

    duration_s: float
    prefills: list[tuple[Request, int]]
    decodes: list[Request]
    loads: list[Request]

    @property
    def tokens(self) -> int:
        return sum(n for _, n in self.prefills) + len(self.decodes)

    @property
    def empty(self) -> bool:
        return not self.prefills and not self.decodes


class Progress(msgspec.Struct, frozen=True):
    """A request that has one more token, and the time since its previous one (None: this is the first)."""

    request: Request
    gap_s: float | None


class Pinned(msgspec.Struct, frozen=True):
    """Blocks of a finished prefill, held for a reader until `expires_at`."""

    blocks: list[int]
    tokens: int
    expires_at: float


class Counters:
    """Running totals since the start; tokens unless the name says otherwise."""

    def __init__(self) -> None:
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.external_queries = 0
        self.external_hits = 0
        self.prompt_tokens = 0
        self.local_compute = 0
        self.local_hits = 0
        self.transferred = 0
        self.generation_tokens = 0
        self.expired_pins = 0


class EngineCore:
    """One rank. `chunk` and `max_seqs` default to the profile's."""

    def __init__(
        self,
        profile: EngineProfile,
        cache: BlockCache,
        *,
        chunk: int | None = None,
        max_seqs: int | None = None,
        by_priority: bool = False,
        lease_s: float = 30.0,
    ) -> None:
        self.profile = profile
        self.cache = cache
        self.chunk = chunk or profile.chunk
        self.max_seqs = max_seqs or profile.max_seqs
        self.lease_s = lease_s
        self.counters = Counters()
        self.paused = False
        self._by_priority = by_priority
        self._arrivals = 0
        self._reserved = 0
        self._waiting: list[Request] = []
        self._loading: dict[Request, None] = {}
        self._running: dict[Request, None] = {}
        self._pinned: dict[str, Pinned] = {}

    @property
    def running(self) -> Sequence[Request]:
        return list(self._running)

    @property
    def waiting(self) -> Sequence[Request]:
        """Those not running yet, requests that wait for another engine's KV among them."""
        return [*self._waiting, *self._loading]

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._loading)

    @property
    def num_loading(self) -> int:
        return len(self._loading)

    @property
    def pinned(self) -> dict[str, Pinned]:
        return dict(self._pinned)

    def fits(self, tokens: int) -> bool:
        """Whether a request of `tokens` in all could ever be admitted."""
        return self._blocks_for(tokens) <= self.cache.capacity

    def add(self, request: Request, now: float) -> None:
        """Put a new request into the waiting queue. Its planned answer must not be empty and must fit (see `fits`)."""
        self._arrivals += 1
        request.arrival = now
        request.order = (request.priority if self._by_priority else 0, self._arrivals)
        insort(self._waiting, request, key=lambda r: r.order)

    def abort(self, request: Request, now: float) -> bool:
        """Drop a request and free its blocks at once. False if it was over already."""
        if not request.alive:
            return False
        if request.phase is Phase.RUNNING:
            del self._running[request]
        elif request.phase is Phase.LOADING:
            del self._loading[request]
        elif request in self._waiting:
            self._waiting.remove(request)
        else:
            # Held back by a paused engine, and never queued.
            request.phase = Phase.ABORTED
            return False
        self._retire(request, Phase.ABORTED, now)
        self.cache.release(request.blocks)
        return True

    def schedule(self, now: float) -> Step:
        """The next step; empty when nothing can run."""
        if self.paused:
            return Step(0.0, [], [], [])
        self.expire_pins(now)
        prefills: list[tuple[Request, int]] = []
        decodes: list[Request] = []
        loads: list[Request] = []
        budget, kv_tokens = self.chunk, 0
        for request in self._running:
            if budget <= 0:
                break
            if request.computed >= request.prompt_len:
                decodes.append(request)
                budget -= 1
                kv_tokens += request.computed + 1
            else:
                budget -= self._schedule_prefill(request, budget, prefills)
        while self._waiting and budget > 0 and len(self._running) < self.max_seqs:
            request = self._waiting[0]
            if not request.ready and not self._admit(request):
                break
            self._waiting.pop(0)
            if request.remote and not request.ready:
                request.phase = Phase.LOADING
                self._loading[request] = None
                loads.append(request)
                continue
            request.phase = Phase.RUNNING
            request.scheduled_at = now
            self._running[request] = None
            budget -= self._schedule_prefill(request, budget, prefills)
        for request in decodes:
            self._grow(request, request.computed + 1)
        shapes = [(n, request.computed) for request, n in prefills]
        return Step(self.profile.step_time(shapes, len(decodes), kv_tokens), prefills, decodes, loads)

    def complete(self, step: Step, now: float) -> list[Progress]:
        """Apply a step that took its time: what each request gained, in the step's order.

        Requests aborted meanwhile are left out.
        """
        progress: list[Progress] = []
        for request, tokens in step.prefills:
            if request.phase is Phase.RUNNING:
                request.computed += tokens
                if request.computed == request.prompt_len:
                    self._count_prompt(request)
                    progress.append(self._emit(request, now))
        for request in step.decodes:
            if request.phase is Phase.RUNNING:
                request.computed += 1
                progress.append(self._emit(request, now))
        return progress

    def loaded(self, request: Request) -> None:
        """The other engine's KV has arrived: all of the prompt but its last token, which is computed here, is cached
        now.
        """
        request.external_tokens = request.prompt_len - request.cached_tokens
        self.counters.external_hits += request.external_tokens
        self._cache_full(request, request.prompt_len)
        request.computed = request.prompt_len - 1
        self._return_from_loading(request)

    def load_failed(self, request: Request) -> None:
        """The other engine's KV cannot be had: the request keeps its place and computes its prompt itself."""
        self._return_from_loading(request)

    def release_pin(self, request_id: str) -> bool:
        """A reader has the blocks of that finished prefill. False if it is unknown or its lease ended."""
        pin = self._pinned.pop(request_id, None)
        if pin is None:
            return False
        self.cache.release(pin.blocks)
        return True

    def expire_pins(self, now: float) -> None:
        """Free the blocks whose lease has ended."""
        for request_id in [key for key, pin in self._pinned.items() if pin.expires_at <= now]:
            self.release_pin(request_id)
            self.counters.expired_pins += 1

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.cache.block_size)

    def _planned_blocks(self, request: Request) -> int:
        # The last token of an answer is never fed back, so it needs no KV.
        return self._blocks_for(len(request.tokens) - 1)

    def _admit(self, request: Request) -> bool:
        size, cache = self.cache.block_size, self.cache
        # At least the last prompt token is computed, or there would be nothing to sample from.
        hits = cache.match(request.hash_blocks((request.prompt_len - 1) // size, size))
        wanted = self._planned_blocks(request) - len(hits)
        if cache.free_blocks - cache.unheld(hits) - self._reserved < wanted:
            return False
        cache.touch(hits)
        request.blocks = hits
        request.filled = len(hits)
        request.cached_tokens = request.computed = len(hits) * size
        self._reserved += wanted
        self.counters.prefix_queries += request.prompt_len
        self.counters.prefix_hits += request.cached_tokens
        if request.remote:
            self.counters.external_queries += request.prompt_len - request.cached_tokens
            self._allocate(request, request.prompt_len)
        return True

    def _schedule_prefill(self, request: Request, budget: int, prefills: list[tuple[Request, int]]) -> int:
        tokens = min(budget, request.prompt_len - request.computed)
        self._grow(request, request.computed + tokens)
        prefills.append((request, tokens))
        return tokens

    def _allocate(self, request: Request, tokens: int) -> None:
        missing = self._blocks_for(tokens) - len(request.blocks)
        if missing > 0:
            request.blocks += self.cache.allocate(missing)
            self._reserved -= missing

    def _grow(self, request: Request, tokens: int) -> None:
        self._allocate(request, tokens)
        self._cache_full(request, tokens)

    def _cache_full(self, request: Request, tokens: int) -> None:
        """Publish the blocks that are full once `tokens` tokens are computed."""
        size, first = self.cache.block_size, request.filled
        full = tokens // size
        if full <= first:
            return
        hashes = request.hash_blocks(full, size)
        request.filled = full
        self.cache.fill(
            request.blocks[first:full],
            hashes[first:],
            hashes[first - 1] if first else None,
            request.tokens[first * size : full * size],
            [request.extra(i) for i in range(first, full)],
            request.lora,
            request.session_id,
        )

    def _count_prompt(self, request: Request) -> None:
        counters = self.counters
        counters.prompt_tokens += request.prompt_len
        counters.local_hits += request.cached_tokens
        counters.transferred += request.external_tokens
        counters.local_compute += request.prompt_len - request.cached_tokens - request.external_tokens

    def _emit(self, request: Request, now: float) -> Progress:
        gap = None if request.last_token_at is None else now - request.last_token_at
        request.first_token_at = now if request.first_token_at is None else request.first_token_at
        request.last_token_at = now
        request.generated += 1
        self.counters.generation_tokens += 1
        if request.generated == request.output_len:
            del self._running[request]
            self._retire(request, Phase.FINISHED, now)
            if request.hold:
                self._pinned[request.request_id] = Pinned(request.blocks, request.prompt_len, now + self.lease_s)
            else:
                self.cache.release(request.blocks)
        return Progress(request, gap)

    def _retire(self, request: Request, phase: Phase, now: float) -> None:
        admitted = request.ready or request.phase is not Phase.WAITING
        if admitted:
            self._reserved -= self._planned_blocks(request) - len(request.blocks)
        request.phase = phase
        request.finished_at = now

    def _return_from_loading(self, request: Request) -> None:
        del self._loading[request]
        request.phase = Phase.WAITING
        request.ready = True
        request.order = (request.order[0], 0)
        self._waiting.insert(0, request)
