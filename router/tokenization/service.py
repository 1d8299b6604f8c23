"""A request's prompt as token ids and block hashes: the one entry of this package. Implements `ports.Tokenization`.

From exact to guessed: the client's own token ids, the model's tokenizer, an engine's ``/tokenize``, an estimate. Short
prompts are done at once, since handing them to a thread costs more than they do; long ones in a few worker threads
(the encoder releases the GIL), with a bounded queue before them: when it is full a prompt is estimated, so that a
flood of long prompts delays nobody's stream.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from kvindex.hashing import block_hashes
from router.core import Api, EndpointState, InferenceRequest, TokenizedPrompt, TokenSource
from router.tokenization.errors import NotRenderable
from router.tokenization.estimate import estimate
from router.tokenization.exact import client_tokens, local_tokens
from router.tokenization.identity import (
    ModelIdentity,
    chain_start,
    estimate_start,
    identity_of,
    model_identity,
    smallest_block_size,
)
from router.tokenization.local import LocalTokenizer, PromptTokens
from router.tokenization.registry import Tokenizers
from router.tokenization.remote import RemoteTokenizer

BlockSizeFor = Callable[[str | None, Sequence[EndpointState]], int]
"""Tokens per block for a model on its candidates."""

NO_TOKENS = TokenizedPrompt(token_ids=array("I"), source=TokenSource.NONE, token_count=0)


class ServiceLimits(msgspec.Struct, frozen=True, kw_only=True):
    inline_max_bytes: int = 16 * 1024
    """Bodies up to this size are done on the event loop."""
    workers: int = 2
    queue: int = 64
    """Long prompts that may wait for a worker."""


class _Prompt(msgspec.Struct, frozen=True):
    """What a request's hashes depend on besides its tokens."""

    request: InferenceRequest
    identity: ModelIdentity
    block_size: int

    def hashed(self, tokens: PromptTokens, source: TokenSource) -> TokenizedPrompt:
        guessed = source is TokenSource.ESTIMATE
        start = estimate_start(self.identity) if guessed else chain_start(self.identity)
        return TokenizedPrompt(
            token_ids=tokens.ids,
            source=source,
            token_count=tokens.total,
            block_size=self.block_size,
            block_hashes=block_hashes(tokens.ids, self.block_size, start, cache_salt=self.request.cache_salt),
        )


class TokenizationService:
    """Give it to the director; `start` before, `aclose` after."""

    def __init__(
        self,
        tokenizers: Tokenizers,
        remote: RemoteTokenizer | None = None,
        *,
        limits: ServiceLimits | None = None,
        block_size_for: BlockSizeFor = smallest_block_size,
        estimates: bool = True,
    ) -> None:
        """`remote` None: engines are not asked. `estimates` False: what cannot be told has no tokens."""
        self._tokenizers = tokenizers
        self._remote = remote
        self._limits = limits or ServiceLimits()
        self._block_size_for = block_size_for
        self._estimates = estimates
        self._workers = ThreadPoolExecutor(self._limits.workers, thread_name_prefix="tokenize")
        self._jobs: set[Future[TokenizedPrompt | None]] = set()

    async def start(self) -> None:
        """Loads the configured tokenizers. Raises `ConfigError`."""
        await self._tokenizers.start()

    async def aclose(self) -> None:
        await self._tokenizers.aclose()
        await asyncio.to_thread(self._workers.shutdown, cancel_futures=True)

    async def tokenize(self, request: InferenceRequest, candidates: Sequence[EndpointState]) -> TokenizedPrompt:
        """See `ports.Tokenization`. A batch of prompts counts as a whole and is hashed as its longest prompt."""
        if request.api is Api.OTHER:
            return NO_TOKENS
        identity = model_identity(request.model, candidates)
        prompt = _Prompt(request, identity, self._block_size_for(request.model, candidates))
        tokenizer = self._tokenizers.get(request.model, identity)
        if (exact := await self._local(prompt, tokenizer)) is not None:
            return exact
        if self._remote is not None and not self._overloaded():
            answered = await self._remote.tokens(
                request.api, request.fields, request.model, candidates, identity.max_model_len
            )
            if answered is not None:
                return prompt.hashed(answered, TokenSource.ENGINE)
        return self._estimated(prompt)

    async def prepare(self, states: Sequence[EndpointState]) -> None:
        """Looks for the tokenizers of all models that `states` serve, and returns when they are there or are not.

        Loading one may hold up the event loop for a second or two, so do it before there are streams to hold up.
        """
        for state in states:
            for card in state.models.values():
                self._tokenizers.get(card.id, identity_of(card, state.models))
        await self._tokenizers.settled()

    async def _local(self, prompt: _Prompt, tokenizer: LocalTokenizer | None) -> TokenizedPrompt | None:
        """None: cannot be told here, or every worker is busy and the queue is full."""
        if len(prompt.request.body) <= self._limits.inline_max_bytes:
            return _exact(prompt, tokenizer)
        if self._overloaded():
            return None
        job = self._workers.submit(_exact, prompt, tokenizer)
        self._jobs.add(job)
        return await asyncio.wrap_future(job)

    @property
    def under_way(self) -> int:
        """Prompts that worker threads have or that wait for one."""
        return sum(not job.done() for job in self._jobs)

    def _overloaded(self) -> bool:
        # A cancelled request leaves its job running in its thread, so jobs are counted and not requests.
        self._jobs = {job for job in self._jobs if not job.done()}
        return len(self._jobs) >= self._limits.workers + self._limits.queue

    def _estimated(self, prompt: _Prompt) -> TokenizedPrompt:
        guess = estimate(prompt.request.api, prompt.request.fields)
        if not self._estimates or not guess.total:
            return NO_TOKENS
        return prompt.hashed(PromptTokens(guess.ids, guess.total), TokenSource.ESTIMATE)


def _exact(prompt: _Prompt, tokenizer: LocalTokenizer | None) -> TokenizedPrompt | None:
    request = prompt.request
    if request.api is Api.COMPLETIONS and (sent := client_tokens(request.fields)) is not None:
        return prompt.hashed(sent, TokenSource.CLIENT)
    if tokenizer is None:
        return None
    try:
        tokens = local_tokens(tokenizer, request.api, request.fields, prompt.identity.max_model_len)
    except NotRenderable:
        return None
    return prompt.hashed(tokens, TokenSource.LOCAL)
