"""The locustfile, run by the locust command (which patches its process: never imported here) against a stub server."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.openai_stub import MODEL, OpenAIStub, cached_tokens, openai_stub

ROOT = Path(__file__).resolve().parents[3]
QUICK = """
shape: multi-turn
users: 3
spawn_rate: 100
run_time_s: 60
multi_turn: {conversations: 2, turns: [2, 3], groups: 2, system_words: 5, question_words: [2, 4],
  answer_tokens: [3, 5], think_s: [0, 0]}
trace: {scale: 0.01, speedup: 50}
"""


@pytest.fixture
def quick(tmp_path: Path) -> str:
    path = tmp_path / "quick.yaml"
    path.write_text(QUICK)
    return str(path)


def command(server: OpenAIStub, *arguments: str) -> list[str]:
    locustfile = str(ROOT / "loadtest" / "locustfile.py")
    return [sys.executable, "-m", "locust", "-f", locustfile, "--host", server.url, *arguments]


def locust(server: OpenAIStub, tmp_path: Path, *arguments: str, exit_code: int = 0) -> tuple[dict[str, Any], str]:
    """A headless run; the sums of the run and what it printed."""
    sums = tmp_path / "sums.json"
    done = subprocess.run(
        command(server, "--headless", "--only-summary", "--summary-json", str(sums), *arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == exit_code, done.stderr
    return (json.loads(sums.read_text()) if sums.exists() else {}), done.stdout + done.stderr


def test_a_load_of_fixed_size_ends_by_itself_and_tells_times_and_hit_rate(quick: str, tmp_path: Path) -> None:
    with openai_stub() as server:
        sums, text = locust(server, tmp_path, "--load-profile", quick)
    told = sum(cached_tokens(number) for number in range(1, len(server.asked) + 1))
    assert sums["requests"] == len(server.asked) >= 12
    assert (sums["failures"], sums["prompt_tokens"], sums["cached_tokens"]) == (0, 100 * len(server.asked), told)
    assert f"hit rate {100 * sums['hit_rate']:.1f} %" in text
    for kind in ("TTFT", "ITL", "TPOT", "E2E", "POST"):
        assert f"\n{kind} " in text


def test_the_server_is_asked_for_streams_with_usage_of_the_model_that_it_lists(quick: str, tmp_path: Path) -> None:
    with openai_stub() as server:
        locust(server, tmp_path, "--load-profile", quick)
    for asked in server.asked:
        assert (asked["model"], asked["stream"], asked["ignore_eos"]) == (MODEL, True, True)
        assert asked["stream_options"] == {"include_usage": True}
    grown = [asked["messages"] for asked in server.asked if len(asked["messages"]) > 2]
    assert grown
    assert all(messages[2]["content"].startswith("answer number") for messages in grown)


def test_streams_that_break_are_failures_and_the_run_says_so(quick: str, tmp_path: Path) -> None:
    with openai_stub(cut_every=4) as server:
        sums, text = locust(server, tmp_path, "--load-profile", quick, exit_code=1)
    assert sums["failures"] == len(server.asked) // 4 > 0
    assert "the stream ended before the answer did" in text


def test_processes_add_up_their_sums(quick: str, tmp_path: Path) -> None:
    with openai_stub() as server:
        sums, text = locust(server, tmp_path, "--load-profile", quick, "--processes", "2")
    assert sums["requests"] == len(server.asked) >= 12
    assert sums["failures"] == 0
    openings = [json.dumps(asked["messages"]) for asked in server.asked if len(asked["messages"]) == 2]
    assert len(set(openings)) == len(openings) == 6, text


def test_a_trace_is_asked_once_by_whoever_is_free(quick: str, tmp_path: Path) -> None:
    lines = [
        {"timestamp": 10 * number, "input_length": 512, "output_length": 100, "hash_ids": [[0, 1], [number, 1]]}
        for number in range(1, 21)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    with openai_stub() as server:
        sums, text = locust(server, tmp_path, "--load-profile", quick, "--trace", str(path))
    assert sums["requests"] == len(server.asked) == 20
    assert "\nLAG " in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--load-profile", "busy"], "no load profile 'busy'"),
        (["--trace", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_a_mistake_ends_the_run_before_it_begins(arguments: list[str], said: str, tmp_path: Path) -> None:
    with openai_stub() as server:
        _, text = locust(server, tmp_path, *arguments, exit_code=2)
    assert f"error: {said}" in text or said in text
    assert "Traceback" not in text
    assert server.asked == []


def test_the_web_ui_runs_a_load_and_shows_the_hit_rate(quick: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with openai_stub() as server:
        process = subprocess.Popen(
            command(server, "--load-profile", quick, "--web-host", "127.0.0.1", "--web-port", str(port)),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as browser:
                until(lambda: answers(browser))
                assert "Locust" in browser.get("/").text
                assert "not known yet" in browser.get("/cache").text
                started = browser.post("/swarm", data={"user_count": 3, "spawn_rate": 50, "load_profile": quick})
                assert started.json()["success"] is True
                until(lambda: browser.get("/stats/requests").json()["state"] == "stopped")
                sums = browser.get("/cache.json").json()
                kinds = {row["method"] for row in browser.get("/stats/requests").json()["stats"]}
                assert f"{100 * sums['hit_rate']:.1f} %" in browser.get("/cache").text
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert sums["requests"] == len(server.asked) >= 12
    assert {"TTFT", "ITL", "TPOT", "E2E"} <= kinds


def answers(browser: httpx.Client) -> bool:
    try:
        return browser.get("/cache.json").status_code == 200
    except httpx.TransportError:
        return False


def until(condition: Any, seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.1)
