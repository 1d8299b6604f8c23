"""Engine: one simulated rank on a virtual clock, whole runs of decode steps at a time. PURE.

The laws are those of `loadtest.simulator.engine` (chunked prefill within a token budget a step, decodes first, FCFS
waiting queue, prefix hits at admission, blocks cached as the step that fills them is scheduled), and a test holds the
two together. What differs is the cost: while nothing is prefilled, the steps to the next end of an answer are one
event, whose time is the sum of an arithmetic series. Blocks that answers grow into are then taken at the end of such a
run.

With `preemption` a request is admitted when its first chunk fits, and when blocks run out the one admitted last gives
up its blocks and computes prompt and answer so far again, as vLLM does; without, it is admitted when its whole answer
fits.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Protocol

from loadtest.replay.cache import PRIVATE, BlockCache, Change
from loadtest.replay.job import Job
from loadtest.simulator.timing import EngineProfile


class Listener(Protocol):
    """Told of what happens on an engine, at the engine's time."""

    def first_token(self, job: Job, now: float) -> None: ...

    def finished(self, job: Job, now: float) -> None: ...

    def load(self, engine: Engine, job: Job, now: float) -> None:
        """The remote prompt's blocks are taken here: its KV may come now (`Engine.loaded`)."""
        ...

    def changed(self, engine: Engine, changes: list[Change], now: float) -> None:
        """The cache stored and removed blocks."""
        ...


class Engine:
    """`due` is when it next wants `fire`; infinity while it has nothing to do. Any other call may change it."""

    def __init__(
        self, name: str, profile: EngineProfile, cache: BlockCache, listener: Listener, *, preemption: bool = False
    ) -> None:
        if profile.chunk <= profile.max_seqs:
            raise ValueError(f"chunk ({profile.chunk}) must be greater than max_seqs ({profile.max_seqs})")
        self.name = name
        self.profile = profile
        self.cache = cache
        self.due = math.inf
        self.busy_s = 0.0
        self.prefilled = 0
        """Prompt tokens computed so far."""
        self.preempted = 0
        self._listener = listener
        self._preemption = preemption
        self._waiting: deque[Job] = deque()
        self._partial: Job | None = None
        self._step: list[tuple[Job, int]] = []
        self._decoding: dict[Job, None] = {}
        self._ends: list[tuple[int, int, Job]] = []
        self._grows: list[tuple[int, int, Job]] = []
        self._kv = 0
        self._done = 0
        self._run = 0
        self._since = 0.0
        self._loading = 0
        self._admitted = 0

    # What can be seen from outside

    @property
    def running(self) -> int:
        return len(self._decoding) + len(self._step)

    @property
    def waiting(self) -> int:
        return len(self._waiting) + self._loading

    @property
    def decoding(self) -> int:
        return len(self._decoding)

    @property
    def kv_tokens(self) -> int:
        """Tokens of context of the decoding requests."""
        return self._kv

    def pending(self) -> list[tuple[int, int]]:
        """(tokens to compute, context before them) of every prompt that waits or is being prefilled.

        A waiting one's cached part is what is cached now.
        """
        size = self.cache.block_size
        ahead = [(s.goal - s.computed, s.computed) for s, _ in self._step]
        for job in self._waiting:
            hit = job.computed or self.cache.match(job.chain[: (job.prompt - 1) // size]) * size
            ahead.append((job.goal - hit, hit))
        return ahead

    def fits(self, prompt: int, output: int) -> bool:
        """Whether such a request could ever be admitted."""
        return -(-(prompt + output - 1) // self.cache.block_size) <= self.cache.capacity

    # What is done to it

    def submit(self, job: Job, now: float) -> None:
        """A new request. Its answer has at least one token, and it fits (`fits`)."""
        blocked = bool(self._waiting)
        self._waiting.append(job)
        self._wake(now, blocked)

    def loaded(self, job: Job, now: float) -> None:
        """The other engine's KV has arrived: all of the prompt but its last token, which is computed here."""
        self._loading -= 1
        self._publish(job, job.prompt)
        job.computed = job.prompt - 1
        job.ready = True
        self._waiting.appendleft(job)
        self._wake(now, False)

    def release_pin(self, job: Job, now: float) -> None:
        """A reader has the blocks of a finished request that was submitted with `hold`."""
        self.cache.release(job.blocks)
        job.blocks = []
        if self._waiting:
            self._wake(now, False)

    def advance(self, now: float) -> None:
        """Apply the decode steps that are over by `now`, so that what can be seen is up to date."""
        if self._run and now < self.due:
            steps = self._steps_by(now)
            if steps:
                self._apply(steps)

    def fire(self) -> None:
        """What is due: a step or a run of steps ends and the next one begins."""
        now = self.due
        if self._step:
            self._end_step(now)
        elif self._run:
            self._apply(self._run)
            self._retire(now)
        self._report(now)
        self._schedule(now)

    def nudge(self, now: float) -> None:
        """Blocks were freed by somebody else."""
        if self._waiting and self.due == math.inf:
            self._schedule(now)

    def copy(self, listener: Listener) -> Engine:
        """A twin with a future of its own, told to another listener. Jobs that are loading elsewhere are not taken."""
        twin = Engine(self.name, self.profile, self.cache.copy(), listener, preemption=self._preemption)
        jobs = {job: job.copy() for job in [*self._decoding, *(j for j, _ in self._step), *self._waiting]}
        twin.due, twin.busy_s, twin.prefilled, twin.preempted = self.due, self.busy_s, self.prefilled, self.preempted
        twin._waiting = deque(jobs[job] for job in self._waiting)
        twin._step = [(jobs[job], tokens) for job, tokens in self._step]
        twin._decoding = {jobs[job]: None for job in self._decoding}
        twin._ends = [(at, order, jobs[job]) for at, order, job in self._ends if job in jobs]
        twin._grows = [(at, order, jobs[job]) for at, order, job in self._grows if job in jobs]
        heapify(twin._ends)
        heapify(twin._grows)
        twin._kv, twin._done, twin._run, twin._since = self._kv, self._done, self._run, self._since
        twin._admitted = self._admitted
        return twin

    def kill(self) -> list[Job]:
        """The process dies: everything in it, in no order. The engine must not be used any more."""
        gone = [*self._decoding, *(s for s, _ in self._step), *self._waiting]
        self._decoding.clear()
        self._step.clear()
        self._waiting.clear()
        self._run = 0
        self.due = math.inf
        return gone

    # Steps

    def _wake(self, now: float, blocked: bool) -> None:
        if self.due == math.inf:
            self._schedule(now)
        elif self._run and not blocked:
            # The step that is on now is the last of its run.
            self._run = min(self._run, self._steps_by(now) + 1)
            self.due = self._since + self._run_s(self._run)

    def _schedule(self, now: float) -> None:
        step: list[tuple[Job, int]] = []
        self._step = step
        self._run = 0
        preempted = self.preempted
        if self._preemption:
            self._grow_decodes(self._done + 1)
        budget = self.profile.chunk - len(self._decoding)
        partial, self._partial = self._partial, None
        if partial is not None:
            budget -= self._prefill(partial, budget)
        waiting = self._waiting
        while waiting and budget > 0 and len(self._decoding) + len(step) < self.profile.max_seqs:
            if self.preempted != preempted:
                break
            job = waiting[0]
            if not job.ready and not self._admit(job, budget):
                break
            waiting.popleft()
            if job.remote and not job.ready:
                self._loading += 1
                self._listener.load(self, job, now)
                continue
            self._admitted += 1
            job.order = self._admitted
            budget -= self._prefill(job, budget)
        self._grow_decodes(self._done + 1)
        self._since = now
        batch = len(self._decoding)
        if step:
            shapes = [(tokens, job.computed) for job, tokens in step]
            duration = self.profile.step_time(shapes, batch, self._kv)
        elif batch:
            self._run = self._run_length(batch)
            duration = self._run_s(self._run)
        else:
            self.due = math.inf
            return
        self.due = now + duration

    def _end_step(self, now: float) -> None:
        self.busy_s += now - self._since
        step, self._step = self._step, []
        batch = len(self._decoding)
        self._done += 1
        self._kv += batch
        for job, tokens in step:
            job.computed += tokens
            self.prefilled += tokens
            if job.computed == job.goal:
                self._sampled(job, now)
            else:
                self._partial = job
        self._retire(now)

    def _sampled(self, job: Job, now: float) -> None:
        """A prefill gave its token."""
        job.generated += 1
        if job.generated == 1:
            self._listener.first_token(job, now)
        if job.generated == job.output:
            self._finish(job, now)
            return
        self._decoding[job] = None
        self._kv += job.goal + 1
        job.ends = self._done + job.output - job.generated
        heappush(self._ends, (job.ends, job.order, job))
        self._await_growth(job, self._done + len(job.blocks) * self.cache.block_size - job.goal + 1)

    def _retire(self, now: float) -> None:
        """Ends the answers whose last token came with the step that is over."""
        ends, done = self._ends, self._done
        while ends and ends[0][0] <= done:
            at, _, job = heappop(ends)
            if job.ends == at:
                del self._decoding[job]
                self._kv -= job.prompt + job.output
                job.ends = -1
                job.generated = job.output
                self._finish(job, now)

    def _finish(self, job: Job, now: float) -> None:
        cache = self.cache
        if not self._preemption:
            cache.reserved -= self._planned(job) - len(job.blocks)
        if not job.hold:
            cache.release(job.blocks)
        self._listener.finished(job, now)

    def _report(self, now: float) -> None:
        changes = self.cache.take_changes()
        if changes:
            self._listener.changed(self, changes, now)

    # Runs of decode steps

    def _run_length(self, batch: int) -> int:
        ends = self._ends
        while ends[0][2].ends != ends[0][0]:
            heappop(ends)
        length = ends[0][0] - self._done
        if not self._preemption:
            return length
        if self.cache.free_blocks >= batch:
            return min(length, self.cache.block_size)
        grows = self._grows
        while grows and not self._grows_still(grows[0]):
            heappop(grows)
        return min(length, grows[0][0] - self._done - 1) if grows else length

    def _run_s(self, steps: int) -> float:
        """Time of that many decode steps from the state at `_since`."""
        profile, batch = self.profile, len(self._decoding)
        kv = steps * self._kv + batch * steps * (steps - 1) / 2
        return steps * (profile.step_s + profile.per_seq_s * batch) + profile.per_kv_token_s * kv

    def _steps_by(self, now: float) -> int:
        """Whole steps of the run that are over by `now`; fewer than the run has."""
        profile, batch, left = self.profile, len(self._decoding), now - self._since
        square = profile.per_kv_token_s * batch / 2
        line = profile.step_s + profile.per_seq_s * batch + profile.per_kv_token_s * self._kv - square
        if left <= 0.0:
            return 0
        root = (math.sqrt(line * line + 4 * square * left) - line) / (2 * square) if square else left / line
        steps = min(int(root), self._run - 1)
        while steps > 0 and self._run_s(steps) > left:
            steps -= 1
        while steps < self._run - 1 and self._run_s(steps + 1) <= left:
            steps += 1
        return steps

    def _apply(self, steps: int) -> None:
        """`steps` steps of the run are over."""
        spent = self._run_s(steps)
        self.busy_s += spent
        self._since += spent
        self._run -= steps
        self._done += steps
        self._kv += steps * len(self._decoding)
        self._grow_decodes(self._done)

    # Blocks

    def _planned(self, job: Job) -> int:
        # The last token of an answer is never fed back, so it needs no KV.
        return -(-(job.prompt + job.output - 1) // self.cache.block_size)

    def _admit(self, job: Job, budget: int) -> bool:
        size, cache = self.cache.block_size, self.cache
        chain = job.chain if job.goal == job.prompt else job.known
        # At least the last prompt token is computed, or there would be nothing to sample from.
        limit = (job.goal - 1) // size
        hits = list(chain[: cache.match(chain if len(chain) <= limit else chain[:limit])])
        if self._preemption:
            target = job.prompt if job.remote else min(job.goal, len(hits) * size + budget)
            if cache.free_blocks - cache.unheld(hits) < -(-target // size) - len(hits):
                return False
        else:
            wanted = self._planned(job) - len(hits)
            if cache.free_blocks - cache.unheld(hits) - cache.reserved < wanted:
                return False
            cache.reserved += wanted
        cache.touch(hits)
        job.blocks = hits
        job.filled = len(hits)
        job.computed = len(hits) * size
        if not job.generated:
            job.cached = job.computed
        if job.remote:
            self._allocate(job, job.prompt)
        return True

    def _prefill(self, job: Job, budget: int) -> int:
        tokens = min(budget, job.goal - job.computed)
        if self._preemption and not self._make_room(job, job.computed + tokens):
            return 0
        self._allocate(job, job.computed + tokens)
        self._publish(job, job.computed + tokens)
        self._step.append((job, tokens))
        return tokens

    def _allocate(self, job: Job, tokens: int) -> None:
        missing = -(-tokens // self.cache.block_size) - len(job.blocks)
        if missing > 0:
            self.cache.allocate(missing)
            job.blocks += [PRIVATE] * missing
            if not self._preemption:
                self.cache.reserved -= missing

    def _publish(self, job: Job, tokens: int) -> None:
        full, first = tokens // self.cache.block_size, job.filled
        if full > first:
            known = job.chain if full <= len(job.chain) else job.known
            self.cache.publish(job.blocks, first, known[first:full])
            job.filled = full

    def _await_growth(self, job: Job, step: int) -> None:
        if step <= job.ends:
            heappush(self._grows, (step, job.order, job))

    def _grows_still(self, entry: tuple[int, int, Job]) -> bool:
        step, _, job = entry
        held = len(job.blocks) * self.cache.block_size
        # Tokens that the job has computed once that step is over.
        return job.ends >= step and job.prompt + job.output - 1 - (job.ends - step) == held + 1

    def _grow_decodes(self, upto: int) -> None:
        """Blocks for the decode steps up to that one."""
        grows, size = self._grows, self.cache.block_size
        while grows and grows[0][0] <= upto:
            entry = heappop(grows)
            if not self._grows_still(entry):
                continue
            step, _, job = entry
            if self._preemption and not self._make_room(job, len(job.blocks) * size + 1):
                continue
            if job.output_blocks:
                self._publish(job, len(job.blocks) * size)
            self._allocate(job, len(job.blocks) * size + 1)
            self._await_growth(job, step + size)

    # Preemption

    def _make_room(self, job: Job, tokens: int) -> bool:
        """Blocks for so many tokens, at the cost of those admitted last. False if `job` itself had to go."""
        needed = -(-tokens // self.cache.block_size) - len(job.blocks)
        while self.cache.free_blocks < needed:
            victim = self._last(job)
            self._preempt(victim)
            if victim is job:
                return False
        return True

    def _last(self, job: Job) -> Job:
        candidates = [*self._decoding, job, *([self._partial] if self._partial else [])]
        return max(candidates, key=lambda s: s.order)

    def _preempt(self, victim: Job) -> None:
        self.preempted += 1
        if victim in self._decoding:
            del self._decoding[victim]
            victim.generated = victim.output - (victim.ends - self._done)
            self._kv -= victim.prompt + victim.generated
            victim.ends = -1
        if victim is self._partial:
            self._partial = None
        victim.goal = victim.prompt + victim.generated
        victim.computed = 0
        victim.ready = victim.remote = False
        self.cache.release(victim.blocks)
        victim.blocks = []
        victim.filled = 0
        self._waiting.appendleft(victim)
