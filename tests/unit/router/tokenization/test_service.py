"""From a request to block hashes, by the best source there is, and never an error."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvindex.hashing import block_hashes, chain_root
from router.core import Api, Endpoint, EndpointState, InferenceRequest, TokenizedPrompt, TokenSource
from router.ports import Tokenization
from router.tokenization.encoder import best_encoder
from router.tokenization.local import LocalTokenizer, PromptTokens
from router.tokenization.registry import Tokenizers
from router.tokenization.remote import RemoteTokenizer
from router.tokenization.service import ServiceLimits, TokenizationService
from tests.support.tokenization import card, renderer, request, small_tokenizer, state

LONG = {"messages": [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 20}]}
SERVING = state("e1", card("m", "base"), card("alias", "base"), card("adapter", "x", parent="m"))
_local = LocalTokenizer("t", best_encoder(small_tokenizer(), "t"), renderer())


def tokenizers(local: LocalTokenizer | None = _local) -> Tokenizers:
    def load(_: str) -> LocalTokenizer:
        assert local is not None
        return local

    return Tokenizers(load, None, default="t" if local is not None else None)


@pytest.fixture
async def service() -> AsyncIterator[TokenizationService]:
    made = TokenizationService(tokenizers())
    await made.start()
    yield made
    await made.aclose()


async def tokenize(made: TokenizationService, *candidates: EndpointState, **fields: Any) -> TokenizedPrompt:
    return await made.tokenize(request(**fields), candidates or (SERVING,))


async def test_a_chat_is_tokenized_and_hashed_from_its_models_root(service: TokenizationService) -> None:
    prompt = await tokenize(service, **LONG)
    ids = _local.chat(LONG).ids
    assert prompt.source is TokenSource.LOCAL
    assert prompt.token_ids == ids
    assert prompt.token_count == len(ids)
    assert prompt.block_size == 16
    assert prompt.block_hashes == block_hashes(ids, 16, chain_root("base"))


async def test_it_is_what_the_director_expects() -> None:
    made: Tokenization = TokenizationService(tokenizers(None))
    assert await made.tokenize(request(Api.OTHER), ()) == TokenizedPrompt(
        token_ids=array("I"), source=TokenSource.NONE, token_count=0
    )


async def test_aliases_share_hashes_and_adapters_and_salts_do_not(service: TokenizationService) -> None:
    plain, alias, adapter, salted, other_salt, named_like_salt = [
        tuple((await tokenize(service, **LONG, **more)).block_hashes)
        for more in (
            {"model": "m"},
            {"model": "alias"},
            {"model": "adapter"},
            {"model": "m", "cache_salt": "a"},
            {"model": "m", "cache_salt": "b"},
            {"model": "m", "cache_salt": "adapter"},
        )
    ]
    assert plain == alias
    assert len({plain, adapter, salted, other_salt, named_like_salt}) == 5
    assert not set(plain) & set(adapter) & set(salted)


async def test_the_block_size_is_the_candidates_or_what_the_caller_says() -> None:
    service = TokenizationService(tokenizers())
    await service.start()
    assert (await tokenize(service, state("e", block_size=32), **LONG)).block_size == 32
    await service.aclose()
    fixed = TokenizationService(tokenizers(), block_size_for=lambda model, candidates: 64)
    await fixed.start()
    assert (await tokenize(fixed, state("e", block_size=32), **LONG)).block_size == 64
    await fixed.aclose()


async def test_a_clients_token_ids_come_before_everything(service: TokenizationService) -> None:
    ids = list(range(100, 140))
    prompt = await tokenize(service, api=Api.COMPLETIONS, prompt=ids)
    assert prompt.source is TokenSource.CLIENT
    assert list(prompt.token_ids) == ids
    assert prompt.block_hashes == block_hashes(array("I", ids), 16, chain_root("base"))
    batch = await tokenize(service, api=Api.COMPLETIONS, prompt=[[1, 2], ids])
    assert (batch.block_hashes, batch.token_count) == (prompt.block_hashes, 42)


class Answers:
    """An engine's /tokenize that gives these ids."""

    def __init__(self, ids: Sequence[int] | None) -> None:
        self.ids = ids

    async def __call__(self, endpoint: Endpoint, payload: bytes) -> Sequence[int] | None:
        return self.ids


async def test_without_a_local_tokenizer_the_engine_is_asked() -> None:
    ids = _local.chat(LONG).ids
    service = TokenizationService(tokenizers(None), RemoteTokenizer(Answers(ids), lambda: 0.0))
    prompt = await tokenize(service, **LONG)
    assert prompt.source is TokenSource.ENGINE
    assert prompt.block_hashes == block_hashes(ids, 16, chain_root("base"))
    await service.aclose()


async def test_what_the_local_tokenizer_cannot_tell_the_engine_may() -> None:
    service = TokenizationService(tokenizers(), RemoteTokenizer(Answers([1, 2]), lambda: 0.0))
    await service.start()
    assert (await tokenize(service, **LONG, chat_template="own")).source is TokenSource.ENGINE
    await service.aclose()


async def test_the_last_resort_is_an_estimate_whose_hashes_no_engine_block_can_have() -> None:
    service = TokenizationService(tokenizers(None), RemoteTokenizer(Answers(None), lambda: 0.0))
    guess = await tokenize(service, **LONG)
    assert guess.source is TokenSource.ESTIMATE
    assert guess.block_hashes
    sent = await tokenize(service, api=Api.COMPLETIONS, prompt=list(guess.token_ids))
    assert sent.token_ids == guess.token_ids
    assert not set(sent.block_hashes) & set(guess.block_hashes)
    assert guess.block_hashes == (await tokenize(service, **LONG)).block_hashes
    await service.aclose()


async def test_estimates_may_be_switched_off() -> None:
    service = TokenizationService(tokenizers(None), estimates=False)
    assert (await tokenize(service, **LONG)).source is TokenSource.NONE
    await service.aclose()


class Slow(LocalTokenizer):
    """Blocks its worker until let go."""

    def __init__(self) -> None:
        super().__init__("slow", best_encoder(small_tokenizer(), "slow"), renderer())
        self.let_go = threading.Event()
        self.threads: set[int] = set()

    def chat(self, fields: Mapping[str, Any], max_model_len: int | None = None) -> PromptTokens:
        self.threads.add(threading.get_ident())
        self.let_go.wait(30)
        return super().chat(fields, max_model_len)


async def test_long_prompts_leave_the_event_loop_and_wait_in_a_bounded_queue() -> None:
    slow = Slow()
    service = TokenizationService(tokenizers(slow), limits=ServiceLimits(inline_max_bytes=10, workers=1, queue=1))
    await service.start()
    big = {"body": b"x" * 11, **LONG}
    waiting = [asyncio.create_task(tokenize(service, **big)) for _ in range(2)]
    await asyncio.sleep(0)
    # One is in the worker and one in the queue: the third is not made to wait.
    assert (await tokenize(service, **big)).source is TokenSource.ESTIMATE
    slow.let_go.set()
    assert [(await task).source for task in waiting] == [TokenSource.LOCAL] * 2
    assert threading.get_ident() not in slow.threads
    await service.aclose()


async def test_a_client_that_leaves_frees_its_place_in_the_queue() -> None:
    slow = Slow()
    service = TokenizationService(tokenizers(slow), limits=ServiceLimits(inline_max_bytes=10, workers=1, queue=1))
    await service.start()
    big = {"body": b"x" * 11, **LONG}
    running = asyncio.create_task(tokenize(service, **big))
    queued = asyncio.create_task(tokenize(service, **big))
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.gather(queued, return_exceptions=True)
    third = asyncio.create_task(tokenize(service, **big))
    await asyncio.sleep(0)
    assert not third.done()
    slow.let_go.set()
    assert {(await running).source, (await third).source} == {TokenSource.LOCAL}
    await service.aclose()


async def test_a_models_own_tokenizer_is_ready_after_preparing() -> None:
    looked: list[str] = []

    def find(root: str) -> LocalTokenizer:
        looked.append(root)
        return _local

    service = TokenizationService(Tokenizers(find, find))
    await service.start()
    await service.prepare([SERVING])
    assert looked == ["base"]
    assert (await tokenize(service, **LONG)).source is TokenSource.LOCAL
    await service.aclose()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["user", "text", "system"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"]), inner)
    ),
    max_leaves=10,
)
_names = ["messages", "prompt", "input", "tools", "system", "chat_template_kwargs", "add_special_tokens", "documents"]


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from(_names), _json), st.sampled_from(list(Api)), st.none() | st.text(max_size=3))
def test_nothing_a_client_may_send_raises(fields: dict[str, Any], api: Api, salt: str | None) -> None:
    async def run(sent: InferenceRequest) -> None:
        service = TokenizationService(tokenizers(), RemoteTokenizer(Answers([1]), lambda: 0.0))
        await service.start()
        prompt = await service.tokenize(sent, [SERVING])
        assert prompt.token_count >= len(prompt.block_hashes)
        await service.aclose()

    asyncio.run(run(request(api, cache_salt=salt, **fields)))
