"""The relay's verdict on every answer of the corpus is that of httpx, but where it is stricter for a stated reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.core import Endpoint
from router.ports import UpstreamBroken
from router.upstream.relay import Relay, RelayOptions
from tests.support.answers import CUT, MALFORMED, STRICTER, WELL_FORMED, Answer
from tests.support.loops import on_both_loops
from tests.support.rawserver import Peer, RawServer, Script

Verdict = tuple[int, bytes] | None
"""Status and body; None for an error."""


def sending(parts: Sequence[bytes], *, reset: bool = False) -> Script:
    async def script(peer: Peer) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
            if len(parts) > 1:
                await asyncio.sleep(0)
        if reset:
            # A reset may overtake what was sent before it: let that be read first.
            await asyncio.sleep(0.05)
            peer.reset()

    return script


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[tuple[RawServer, Relay]]:
    relay = Relay(RelayOptions(sweep_s=0.05, first_byte_timeout_s=10))
    try:
        async with RawServer(script) as server:
            yield server, relay
    finally:
        await relay.aclose()


async def relayed(relay: Relay, url: str) -> Verdict:
    try:
        response = await relay.open(Endpoint(id="e", url=url), b"POST", "/", [], b"{}")
        parts = []
        while part := await response.read():
            parts.append(part)
    except UpstreamBroken:
        return None
    return response.status, b"".join(parts)


async def by_reference(url: str) -> Verdict:
    # Loading certificate authorities would be most of the test's time, and nothing here is https.
    async with httpx.AsyncClient(timeout=10, verify=False, trust_env=False) as client:
        try:
            async with client.stream("POST", url, content=b"{}") as response:
                body = b"".join([part async for part in response.aiter_raw()])
        except (httpx.HTTPError, NotImplementedError):
            return None
    return response.status_code, body


@pytest.mark.parametrize("answer", WELL_FORMED + CUT + MALFORMED, ids=lambda a: a.name)
@on_both_loops
async def test_the_verdict_is_the_references(answer: Answer) -> None:
    async with serving(sending([answer.wire], reset=answer.reset)) as (server, relay):
        assert await relayed(relay, server.url) == await by_reference(server.url)


@pytest.mark.parametrize("answer", WELL_FORMED, ids=lambda a: a.name)
@on_both_loops
async def test_a_well_formed_answer_is_accepted(answer: Answer) -> None:
    async with serving(sending([answer.wire])) as (server, relay):
        assert await relayed(relay, server.url) is not None


@pytest.mark.parametrize("answer", CUT + MALFORMED + STRICTER, ids=lambda a: a.name)
@on_both_loops
async def test_a_cut_or_malformed_answer_is_broken_ret_12c(answer: Answer) -> None:
    async with serving(sending([answer.wire], reset=answer.reset)) as (server, relay):
        assert await relayed(relay, server.url) is None


@pytest.mark.parametrize("answer", STRICTER, ids=lambda a: a.name)
async def test_where_the_relay_is_stricter_the_reference_still_accepts(answer: Answer) -> None:
    async with serving(sending([answer.wire])) as (server, _):
        assert await by_reference(server.url) is not None


@pytest.mark.parametrize("answer", [a for a in WELL_FORMED + CUT if not a.reset], ids=lambda a: a.name)
@on_both_loops
async def test_one_byte_at_a_time_gives_the_same(answer: Answer) -> None:
    whole, single = [answer.wire], [bytes([byte]) for byte in answer.wire]
    async with serving(sending(whole)) as (server, relay):
        expected = await relayed(relay, server.url)
    async with serving(sending(single)) as (server, relay):
        assert await relayed(relay, server.url) == expected


@st.composite
def split_answers(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    body = draw(st.binary(max_size=200))
    if draw(st.booleans()):
        wire = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    else:
        sizes = draw(st.lists(st.integers(1, 50), max_size=8))
        pieces, at = [], 0
        for size in sizes:
            pieces.append(body[at : at + size])
            at += size
        pieces.append(body[at:])
        framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
        wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    cuts = sorted(draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    edges = [0, *cuts, len(wire)]
    return body, [wire[a:b] for a, b in pairwise(edges) if a < b]


@given(split_answers())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_split_of_the_bytes_gives_the_same_body_str_02(case: tuple[bytes, list[bytes]]) -> None:
    body, parts = case

    async def check() -> None:
        async with serving(sending(parts)) as (server, relay):
            assert await relayed(relay, server.url) == (200, body)

    asyncio.run(check())
