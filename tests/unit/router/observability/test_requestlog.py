from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core import NO_MATCH, Candidate, Decision, Endpoint, EndpointState, Inflight, TokenizedPrompt, TokenSource
from router.errors import ConfigError
from router.observability.events import Outcome
from router.observability.requestlog import BlockNumbers, RequestLog
from tests.support.journey import request
from tests.support.observations import ended

CHOSEN = Candidate(EndpointState(endpoint=Endpoint(id="a", url="http://a")), Inflight(3, 700, 900), NO_MATCH, None)
DECISION = Decision(decode=(CHOSEN,), reason="aggregated")


def prompt(*blocks: int, block_size: int = 16) -> TokenizedPrompt:
    return TokenizedPrompt(
        token_ids=(7, 7), source=TokenSource.LOCAL, token_count=100, block_size=block_size, block_hashes=blocks
    )


def log_of(path: Path, **limits: Any) -> RequestLog:
    return RequestLog(path, wall=lambda: 1000.0, **limits)


def serve(log: RequestLog, *blocks: int, block_size: int = 16, **changed: Any) -> None:
    log.on_decision(request(), prompt(*blocks, block_size=block_size), DECISION)
    log.on_end(ended(**changed))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_tells_times_lengths_blocks_decision_and_outcome(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl")
    log.start()
    serve(log, 900, 17, 5, e2e_s=0.5)
    serve(log, 900, 17, 88, outcome=Outcome.CLIENT_GONE, output_tokens=None)
    log.close()
    head, first, second = lines(tmp_path / "log.jsonl")
    assert head == {"kvrouter_request_log": 1, "block_size": 16}
    assert first["timestamp"] == 999_500.0
    assert (first["input_length"], first["output_length"]) == (100, 10)
    assert (first["hash_ids"], second["hash_ids"]) == ([[0, 3]], [[0, 2], [3, 1]])
    assert (first["endpoint"], first["reason"], first["outcome"]) == ("a", "aggregated", "ok")
    assert first["chosen"] == {"requests": 3, "prefill_tokens": 700}
    assert second["outcome"] == "client_gone"
    assert "output_length" not in second


def test_nothing_of_prompt_body_key_or_session_is_written(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl")
    log.start()
    asked = msgspec.structs.replace(
        request(headers=((b"authorization", b"Bearer sesame"),)), routing_headers={"x-session-id": "alice"}
    )
    log.on_decision(asked, prompt(1234567890123), DECISION)
    log.on_end(ended(request=asked))
    log.on_end(ended(request=asked))
    log.close()
    text = (tmp_path / "log.jsonl").read_text()
    for secret in ("hello", "sesame", "alice", "1234567890123"):
        assert secret not in text
    _, first, second = lines(tmp_path / "log.jsonl")
    assert first["session"] == second["session"]


def test_a_request_without_a_decision_is_a_line_without_blocks(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl")
    log.start()
    log.on_end(ended(outcome=Outcome.REFUSED, status=429))
    log.close()
    _, line = lines(tmp_path / "log.jsonl")
    assert (line["status"], line["hash_ids"]) == (429, [])


def test_block_numbers_begin_anew_behind_a_head_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for size in (16, 32):
        log = log_of(path)
        log.start()
        serve(log, 5, 6, block_size=size)
        log.close()
    first, _, second, after = lines(path)
    assert (first["block_size"], second["block_size"]) == (16, 32)
    assert after["hash_ids"] == [[0, 2]]


def test_a_log_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    path, rotated = tmp_path / "log.jsonl", tmp_path / "log.jsonl.1"
    log = log_of(path)
    log.start()
    serve(log, 5)
    wait_for_lines(path, 2)
    path.rename(rotated)
    serve(log, 5)
    log.close()
    assert [line.get("kvrouter_request_log") for line in lines(path)] == [1, None]
    assert len(lines(rotated)) == 2


def wait_for_lines(path: Path, count: int) -> None:
    give_up = time.monotonic() + 20
    while not path.exists() or len(path.read_bytes().splitlines()) < count:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_requests_that_do_not_fit_are_dropped_and_counted_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(tmp_path / "log.jsonl", capacity=2)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            serve(log, 5)
    assert log.dropped == 3
    assert len(caplog.messages) == 1
    log.start()
    log.close()
    assert len(lines(tmp_path / "log.jsonl")) == 3


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.requests: .*nowhere/log\.jsonl cannot be written"):
        log_of(tmp_path / "nowhere" / "log.jsonl").start()


@given(chains=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20))
def test_numbers_are_the_same_for_the_same_blocks(chains: list[list[int]]) -> None:
    numbers = BlockNumbers()
    known: dict[int, int] = {}
    for chain in chains:
        told = [first + i for first, count in numbers.runs(chain) for i in range(count)]
        assert len(told) == len(chain)
        for block, number in zip(chain, told, strict=True):
            assert known.setdefault(block, number) == number
    assert len(set(known.values())) == len(known)


def test_blocks_not_seen_for_long_are_forgotten() -> None:
    numbers = BlockNumbers(limit=100)
    assert numbers.runs([1]) == [[0, 1]]
    numbers.runs(range(1000, 1110))
    assert numbers.runs([1])[0][0] != 0
    assert numbers.runs(range(1080, 1090)) == [[81, 10]]
