"""Every request is told of once, whoever answers it and whenever."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.field import CHAT, chat, field, streamed
from tests.support.rawclient import connected, dumped, post
from tests.support.stub_engine import serve


async def test_every_answer_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="kvrouter.access")
    big = {"server__max_body_bytes": 1000, "server__access_log": True, "server__body_idle_timeout_s": 0.2}
    async with field(serve, **big) as at, connected(at.router) as slow:
        client = at.client
        answers = [
            await client.post(CHAT, content=b"{x}"),
            await client.get(CHAT),
            await client.options(CHAT),
            await client.post(CHAT, content=b"x" * 1001),
            await client.post(CHAT, content=b"{}", headers={"content-encoding": "gzip"}),
            await client.get("/v1/responses/a/b"),
            await client.post("/debug/explain", content=b"{}"),
            await client.post("/debug/explain", json=chat()),
            await at.chat(),
            await at.chat(model="nobody's"),
        ]
        await slow.send(post(CHAT, dumped(streamed()))[:-5])
        async with asyncio.timeout(30):
            late = await slow.answer()
        seen = sorted([*(answer.status_code for answer in answers), late.status])
        assert seen == [200, 200, 400, 400, 404, 404, 405, 405, 408, 413, 415]
        for status in set(seen):
            assert await at.metric("kvrouter_requests_total", status=str(status)) == seen.count(status)
        assert await at.metric("kvrouter_requests_total") == len(seen)
        assert await at.metric("kvrouter_requests_total", api="explain") == 2
        await at.at_rest()
    lines = [record.getMessage() for record in caplog.records if record.name == "kvrouter.access"]
    assert sorted(int(line.split()[2]) for line in lines) == seen
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert [line.split()[0] for line in lines][: len(ids)] == ids
