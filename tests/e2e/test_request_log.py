"""What a router served is written down without its prompts, and can be replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from router.cli import run
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines

SHARED = "The quick brown fox jumps over the lazy dog. " * 40


async def test_served_requests_are_logged_and_their_log_is_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "requests.log"
    async with (
        engines(2) as running,
        running_router(
            endpoints(running), log__requests=str(path), usage__inject_stream_usage=True, server__api_keys=["sesame"]
        ) as router,
        client_of(router) as client,
    ):
        for number in range(6):
            answer = await client.post(
                "/v1/chat/completions",
                json={
                    "model": "sim-model",
                    "messages": [{"role": "user", "content": f"{SHARED} {number}"}],
                    "max_tokens": 5,
                    "stream": number % 2 == 0,
                },
                headers={"x-session-id": "alice", "authorization": "Bearer sesame"},
            )
            assert answer.status_code == 200
    text = path.read_text()
    for secret in ("fox", "alice", "sesame"):
        assert secret not in text
    head, *lines = [json.loads(line) for line in text.splitlines()]
    assert head["kvrouter_request_log"] == 1
    assert [line["outcome"] for line in lines] == ["ok"] * 6
    assert all(line["output_length"] == 5 for line in lines)
    shared = {line["hash_ids"][0][0] for line in lines}
    assert shared == {0}
    assert all(line["input_length"] // head["block_size"] == sum(n for _, n in line["hash_ids"]) for line in lines)
    assert len({line["session"] for line in lines}) == 1

    assert run(["replay", str(path), "--policy", "default", "--engines", "2", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["summary"]["requests"] == 6
    assert row["summary"]["hit_rate"] > 0.5
