"""What would be decided, and what was: over HTTP and on the command line, with simulated engines behind a router."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from router.cli import run
from tests.support.router import client_of, endpoints, running_router
from tests.support.simulator import engines, prefill_and_decode

CHAT = "/v1/chat/completions"
BODY = {
    "model": "sim-model",
    "messages": [{"role": "user", "content": "why do blocks matter " * 60}],
    "max_tokens": 4,
    "stream": True,
}


async def test_a_body_is_explained_and_nothing_is_sent_to_an_engine() -> None:
    async with engines(3) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        served = await client.post(CHAT, json=BODY)
        answer = await client.post("/debug/explain", json=BODY)
        assert answer.status_code == 200
        told = answer.json()
        assert told["decode"][0] == served.headers["x-kvrouter-endpoint"]
        assert told["reason"] == "aggregated"
        assert [row["chosen_for"] for row in told["candidates"]].count("decode") == 1
        assert len(told["candidates"]) == 3
        best = told["candidates"][0]
        assert best["matched_tokens"] > 0
        parts = [value for name, value in best["terms"].items() if name != "total"]
        assert best["terms"]["total"] == pytest.approx(sum(parts), abs=1e-4)
        assert best["scores"] == {"predicted-latency-scorer": 1.0}
        assert router.app.inflight.snapshot() == {}
        assert len((await client.get("/debug/decisions")).json()["decisions"]) == 1


async def test_what_cannot_be_explained_is_refused_with_a_sentence() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for body, said in (
            (b"{", "not valid JSON"),
            (b'{"a":' * 5000, "not valid JSON"),
            (b"[]", "messages"),
            (b'{"model": "sim-model"}', "messages"),
        ):
            answer = await client.post("/debug/explain", content=body)
            assert answer.status_code == 400
            assert said in answer.json()["error"]["message"]
        named = await client.post("/debug/explain?path=/v1/completions", json={"model": "sim-model", "prompt": "x"})
        assert named.status_code == 200
        got = await client.get("/debug/explain")
        assert (got.status_code, got.headers["allow"]) == (405, "POST")
        missing = await client.post("/debug/explain", json=BODY | {"model": "none"})
        assert missing.status_code == 404


async def test_operations_pages_that_tell_of_traffic_want_the_key() -> None:
    async with (
        engines(1) as running,
        running_router(endpoints(running), server__api_keys=["k"]) as router,
        client_of(router) as client,
    ):
        assert (await client.post("/debug/explain", json=BODY)).status_code == 401
        assert (await client.get("/debug/decisions")).status_code == 401


async def test_a_response_says_why_on_request_and_the_engine_never_sees_the_wish() -> None:
    async with (
        prefill_and_decode(1, 1) as (prefill, decode),
        running_router(endpoints(prefill=prefill, decode=decode)) as router,
        client_of(router) as client,
    ):
        plain = await client.post(CHAT, json=BODY)
        assert "x-kvrouter-decision" not in plain.headers
        told = await client.post(CHAT, json=BODY, headers={"x-kvrouter-explain": "1"})
        line = told.headers["x-kvrouter-decision"]
        assert line.startswith("reason=pd")
        assert router.endpoint_of(decode[0]) in line
        assert "ttft=" in line


async def test_the_last_decisions_show_what_was_predicted_and_what_came() -> None:
    async with engines(2) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        for number in range(3):
            await client.post(CHAT, json=BODY, headers={"x-request-id": f"r{number}"})
        decisions = (await client.get("/debug/decisions")).json()["decisions"]
        assert [entry["request_id"] for entry in decisions] == ["r2", "r1", "r0"]
        assert all(entry["predicted_first_token_s"] > 0 < entry["first_token_s"] for entry in decisions)
        assert {entry["outcome"] for entry in decisions} == {"ok"}
        assert all(entry["ttft_s"] <= entry["e2e_s"] for entry in decisions)
        assert "kvrouter_ttft_prediction_error_seconds" in (await client.get("/metrics")).text


async def test_a_decision_for_an_answer_in_one_piece_tells_its_whole_time_and_no_null() -> None:
    async with engines(1) as running, running_router(endpoints(running)) as router, client_of(router) as client:
        await client.post(CHAT, json=BODY | {"stream": False})
        (entry,) = (await client.get("/debug/decisions")).json()["decisions"]
        assert entry["streamed"] is False
        assert entry["e2e_s"] > 0 < entry["predicted_ttft_s"]
        assert "ttft_s" not in entry
        assert None not in entry.values()


async def test_prefill_and_decode_apart_are_told_as_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps(BODY))
    async with (
        prefill_and_decode(1, 1) as (prefill, decode),
        running_router(endpoints(prefill=prefill, decode=decode)) as router,
        client_of(router) as client,
    ):
        await client.post(CHAT, json=BODY)
        told = (await client.post("/debug/explain", json=BODY)).json()
        pair = told["compared"]
        names = router.endpoint_of(prefill[0]), router.endpoint_of(decode[0])
        assert (pair["prefill"], pair["decode"]) == names
        apart = pair["prefill_cost"] + pair["decode_cost"]
        assert bool(told["prefill"]) is (apart < pair["whole_cost"])
        assert told["predicted_ttft_s"] > 0
        (entry,) = (await client.get("/debug/decisions")).json()["decisions"]
        assert entry["predicted_ttft_s"] > 0
        assert await asyncio.to_thread(run, ["explain", router.url, "--body", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("apart ")]
    assert all(name in row for name in names)
    assert "first token in " in lines[0]


async def test_the_command_sends_headers_and_takes_an_address_as_curl_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps(BODY))
    monkeypatch.setenv("KVROUTER_API_KEY", "another")
    async with (
        engines(1) as running,
        running_router(
            endpoints(running), server__api_keys=["k"], server__trusted_headers=["x-llm-d-slo-ttft-ms"]
        ) as router,
    ):
        command = ["explain", router.url.removeprefix("http://"), "--body", str(file)]
        assert await asyncio.to_thread(run, command) == 2
        assert "wants a key" in capsys.readouterr().err
        costs, said = [], []
        for fields in ([], ["-H", "x-llm-d-slo-ttft-ms:0.001", "-H", "x-llm-d-slo-tpot-ms:5"]):
            code = await asyncio.to_thread(run, [*command, "--header", "Authorization: Bearer k", *fields])
            table = capsys.readouterr().out
            assert code == 0
            names, row = [line for line in table.splitlines() if "interference" in line or line.startswith("127.")]
            costs.append(float(row.split()[-1]))
            assert names.split()[-1] == "slo"
            said.append(
                [line.partition(":")[0] for line in table.splitlines() if "objective" in line or "slo-" in line]
            )
        assert costs[0] == 0.0 < costs[1]
        assert said == [[], ["objective", "x-llm-d-slo-tpot-ms counts for nothing"]]


async def test_the_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps(BODY))
    async with engines(2) as running, running_router(endpoints(running)) as router:
        code = await asyncio.to_thread(run, ["explain", router.url, "--body", str(file)])
        printed = capsys.readouterr().out
        assert code == 0
        for engine in running:
            assert router.endpoint_of(engine) in printed
        assert "pending" in printed


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (["explain"], "--body"),
        (["explain", "--body", "no-such-file"], "no-such-file"),
        (["explain", "http://127.0.0.1:9", "--body", __file__], "running router"),
        (["explain", "127.0.0.1:9", "--body", __file__], "http://127.0.0.1:9 cannot be asked"),
        (["explain", "ftp://127.0.0.1:9"], "ftp://127.0.0.1:9 is no address of a router: write it like http://"),
        (["explain", "http://"], "is no address of a router"),
        (["explain", "http://a b:99999999"], "is no address of a router"),
        (["explain", "--header", "no colon"], "--header: a field has no name and colon"),
        (["explain", "--header", "a b: c"], "--header: a field has no name and colon"),
        (["explain", "--header", "authorization: Bearer sesame\r\nx: y"], "the value of authorization has a control"),
        (["plan", "127.0.0.1:9"], "http://127.0.0.1:9 cannot be asked"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], mend: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert mend in told
    assert "sesame" not in told
