"""SimEngine: one simulated server without its HTTP: ranks, models, faults, hand-offs, and whether it is alive."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import msgspec
import zmq.asyncio

from loadtest.simulator.blocks import BlockCache
from loadtest.simulator.driver import EngineDied, Loader, RankDriver, Stream
from loadtest.simulator.engine import EngineCore, Request
from loadtest.simulator.events import EventCodec
from loadtest.simulator.ledger import Ledger
from loadtest.simulator.publisher import EventPublisher
from loadtest.simulator.settings import EngineConfig, Faults, SimulatorConfigError, find_profile
from loadtest.simulator.text import SimTokenizer
from loadtest.simulator.transfer import Directory, HandOff, render

MODEL_LEN_CEILING = 131_072
FINGERPRINT = "vllm-0.32.0-5e000000"
_NO_FAULTS = Faults()


class Busy(Exception):
    """The engine has as many requests in flight as it takes."""


class SimEngine:
    """Made by `local.start_engines` or the command line.

    `on_death` is called once, when a fault or a client kills the engine.
    """

    def __init__(self, config: EngineConfig, tokenizer: SimTokenizer, directory: Directory) -> None:
        profile = find_profile(config.profile)
        blocks = config.num_gpu_blocks or profile.kv_tokens // config.block_size
        if blocks < 2:
            raise SimulatorConfigError(f"num_gpu_blocks: {blocks} blocks hold no request; give at least 2")
        capacity = blocks * config.block_size
        if config.max_model_len is not None and config.max_model_len > capacity:
            raise SimulatorConfigError(
                f"max_model_len: {config.max_model_len} tokens do not fit {blocks} blocks of {config.block_size}; "
                "raise num_gpu_blocks or lower max_model_len"
            )
        self.config = config
        self.tokenizer = tokenizer
        self.profile = profile
        self.num_gpu_blocks = blocks
        self.max_model_len = config.max_model_len or min(capacity, MODEL_LEN_CEILING)
        self.loras: dict[str, tuple[int, str]] = {name: (i, name) for i, name in enumerate(config.loras, 1)}
        self.lora_seen: dict[tuple[str, str], float] = {}
        self.faults = config.faults
        self.faults_left = config.faults.count
        self.ledger = Ledger()
        self.rng = random.Random(config.seed)
        self.responses: dict[str, dict[str, Any]] = {}
        """Remembered answers of /v1/responses by id: the object, and the chat that led to it."""
        self.background: dict[str, asyncio.Task[None]] = {}
        self.started_at = time.time()
        self.dead = False
        self.stopping = False
        self.paused = False
        self.sleep_level = 0
        self.rejected = 0
        self.port = config.port
        self.on_death: Callable[[], None] | None = None
        self._directory = directory
        self.publishers: list[EventPublisher] = []
        self.ranks: list[RankDriver] = []
        self._held = asyncio.Event()
        self._held.set()

    @property
    def engine_id(self) -> str:
        return self.config.engine_id or f"{self.config.role}-{self.port}"

    def rank_engine_id(self, rank: int) -> str:
        return self.engine_id if self.config.dp_size == 1 else f"{self.engine_id}_dp{rank}"

    def start(self, port: int, context: zmq.asyncio.Context) -> None:
        """Bind the event sockets and start the ranks; `port` is where HTTP listens."""
        config = self.config
        self.port = port
        if config.kv_events:
            codec = EventCodec(map_form=config.event_form == "map", int_hashes=config.event_hashes == "int")
            for rank in range(config.dp_size):
                publisher = EventPublisher(
                    context,
                    codec,
                    host=config.host,
                    port=config.kv_events_port + rank if config.kv_events_port else 0,
                    replay_port=config.kv_events_port + 1000 + rank if config.kv_events_port else 0,
                    topic=f"kv@{config.host}:{port}@{config.model}",
                    rank=rank,
                    buffer_steps=config.buffer_steps,
                )
                publisher.start()
                self.publishers.append(publisher)
        for rank in range(config.dp_size):
            core = EngineCore(
                self.profile,
                BlockCache(self.num_gpu_blocks, config.block_size),
                chunk=config.max_num_batched_tokens,
                max_seqs=config.max_num_seqs,
                by_priority=config.scheduling_policy == "priority",
                lease_s=config.lease_s,
            )
            publish = self.publishers[rank].publish if self.publishers else None
            driver = RankDriver(rank, core, speed=config.speed, publish=publish)
            driver.start()
            self.ranks.append(driver)
        self._directory.add(config.host, port, self)

    async def aclose(self) -> None:
        self._directory.remove(self.config.host, self.port)
        self.dead = True
        tasks = list(self.background.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for driver in self.ranks:
            driver.fail_all(EngineDied())
            await driver.aclose()
        for publisher in self.publishers:
            await publisher.aclose()

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run an answer that no connection waits for; it ends with the engine at the latest."""
        task = asyncio.create_task(work)
        self.background[name] = task
        task.add_done_callback(lambda _task: self.background.pop(name, None))

    def die(self) -> None:
        """The engine core is gone: waiting answers end as vLLM ends them, then the server stops."""
        if self.dead:
            return
        self.dead = True
        for driver in self.ranks:
            driver.fail_all(EngineDied())
        if self.on_death is not None:
            self.on_death()

    @property
    def in_flight(self) -> int:
        return sum(driver.in_flight for driver in self.ranks)

    def models(self) -> list[str]:
        return [self.config.model, *self.config.aliases]

    def pick_rank(self) -> RankDriver:
        """vLLM's own choice among ranks: fewest requests; it does not look at prefixes."""
        return min(self.ranks, key=lambda d: (d.core.num_waiting * 4 + d.core.num_running, d.rank))

    def admit(self, count: int) -> None:
        """Raises EngineDied, Busy."""
        if self.dead:
            raise EngineDied
        limit = self.config.max_num_queued_reqs
        if limit is not None and self.in_flight + count > limit:
            self.rejected += 1
            raise Busy

    async def submit(
        self, driver: RankDriver, request: Request, stream: Stream, finish_reason: str, hand_off: HandOff | None
    ) -> None:
        """Queue a request on a rank. While the engine is paused, asleep or stopping, it is held here, unseen."""
        await self._held.wait()
        if self.dead:
            raise EngineDied
        load = None
        if hand_off is not None:
            config = self.config
            load = Loader(
                driver,
                hand_off,
                holds=self._directory.holds,
                release=self._directory.release,
                base_s=config.transfer_base_ms / 1e3 / config.speed,
                per_token_s=config.transfer_ms_per_token / 1e3 / config.speed,
                failure_s=config.transfer_failure_s / config.speed,
                recompute=config.kv_load_failure_policy == "recompute",
            )
        driver.submit(request, stream, finish_reason, load)
        self._note_loras()

    def hand_off_params(self, driver: RankDriver, request: Request) -> dict[str, Any] | None:
        """What a finished prefill leg returns; None if its blocks are not pinned."""
        pin = driver.core.pinned.get(request.request_id)
        if pin is None:
            return None
        hand_off = HandOff(self.rank_engine_id(driver.rank), request.request_id, self.config.host, self.port)
        return render(hand_off, blocks=pin.blocks, tokens=request.prompt_len, cached_tokens=request.cached_tokens)

    def holds(self, engine_id: str, request_id: str) -> bool:
        """Whether a finished prefill's blocks are pinned here (see `transfer.Holder`)."""
        driver = self._rank_named(engine_id)
        if driver is None or self.dead:
            return False
        driver.core.expire_pins(time.monotonic())
        return request_id in driver.core.pinned

    def release(self, engine_id: str, request_id: str) -> bool:
        driver = self._rank_named(engine_id)
        if driver is None or not driver.core.release_pin(request_id):
            return False
        driver.poke()
        return True

    def pause(self, mode: str) -> None:
        """Hold new requests; running ones are aborted, or frozen with mode "keep"."""
        self.paused = True
        self._held.clear()
        for driver in self.ranks:
            if mode == "keep":
                driver.core.paused = True
            elif mode == "abort":
                driver.abort_all()

    def resume(self) -> None:
        self.paused = False
        self._release_held()

    def sleep(self, level: int) -> None:
        self.sleep_level = level
        self._held.clear()
        for driver in self.ranks:
            driver.core.paused = True
            driver.core.cache.reset()

    def wake_up(self) -> None:
        self.sleep_level = 0
        self._release_held()

    def stop(self) -> None:
        """What SIGTERM does without a shutdown time-out: running answers end with "abort", later requests hang."""
        self.stopping = True
        self._held.clear()
        for driver in self.ranks:
            driver.abort_all()

    def reset_prefix_cache(self) -> bool:
        done = [driver.core.cache.reset() for driver in self.ranks]
        return all(done)

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        self.faults_left = faults.count
        if faults.die:
            self.die()

    def faults_for(self, path: str) -> Faults | None:
        """The faults that this request meets; counts it against their number."""
        faults = self.faults
        if faults == _NO_FAULTS or self.faults_left == 0 or not path.startswith(faults.paths):
            return None
        if self.faults_left is not None:
            self.faults_left -= 1
        return faults

    def _rank_named(self, engine_id: str) -> RankDriver | None:
        return next((d for d in self.ranks if self.rank_engine_id(d.rank) == engine_id), None)

    def _release_held(self) -> None:
        if self.paused or self.sleep_level or self.stopping:
            return
        self._held.set()
        for driver in self.ranks:
            driver.core.paused = False
            driver.poke()

    def _note_loras(self) -> None:
        """Keep the moments at which each set of adapters was last seen running and waiting, as vLLM's gauge does."""
        if not self.loras:
            return
        running = {r.lora[1] for d in self.ranks for r in d.core.running if r.lora}
        waiting = {r.lora[1] for d in self.ranks for r in d.core.waiting if r.lora}
        key = (",".join(sorted(running)), ",".join(sorted(waiting)))
        self.lora_seen.pop(key, None)
        self.lora_seen[key] = time.time()
        while len(self.lora_seen) > 256:
            self.lora_seen.pop(next(iter(self.lora_seen)))

    def note_loras(self) -> None:
        self._note_loras()


def fresh_id(digits: int = 16) -> str:
    """A request id part like vLLM's: lower-case hexadecimal, unlike any other engine's."""
    return uuid4().hex[:digits]


def error_body(message: str, kind: str, code: int, param: str | None = None) -> bytes:
    """vLLM's error JSON."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
