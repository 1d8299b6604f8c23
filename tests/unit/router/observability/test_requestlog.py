from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from loadtest.replay.inputs import read_workload
from loadtest.replay.lines import InputError
from router.core import NO_MATCH, Candidate, Decision, Endpoint, EndpointState, Inflight, TokenizedPrompt, TokenSource
from router.errors import ConfigError
from router.observability.events import Outcome
from router.observability.requestlog import RequestLog, RequestLogMetrics
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
    wait_until(lambda: path.exists() and len(path.read_bytes().splitlines()) >= count)


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_requests_that_do_not_fit_are_left_out_and_counted_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of(tmp_path / "log.jsonl", capacity=2)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            serve(log, 5)
        assert len(caplog.messages) == 1
        log.start()
        log.close()
    assert log.counts == {"written": 2, "queue": 3, "disk": 0}
    told, head, *requests = lines(tmp_path / "log.jsonl")
    assert told == {"left_out": 3}
    assert head == {"kvrouter_request_log": 1, "block_size": 16}
    assert len(requests) == 2
    first, last = caplog.messages
    assert first.startswith("1 requests are missing from the request log ")
    assert last.startswith("2 requests are missing from the request log ")


def test_losses_are_told_once_a_minute_with_their_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 10.0, 59.0, 60.0, 61.0))
    log = log_of(tmp_path / "log.jsonl", capacity=1, clock=times.__next__)
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            serve(log, 5)
    assert [message.split()[0] for message in caplog.messages] == ["1", "3"]


class FullDisk:
    """`os.write` on a disk with room for so many bytes more."""

    def __init__(self) -> None:
        self.room = 10**9
        self._write = os.write

    def write(self, file: int, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._write(file, data[: self.room])
        self.room -= taken
        return taken


def test_a_full_disk_costs_lines_that_are_counted_and_told_and_no_line_stays_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, disk = tmp_path / "log.jsonl", FullDisk()
    monkeypatch.setattr("router.observability.requestlog_file.os.write", disk.write)
    log = log_of(path)
    log.start()
    serve(log, 5)
    wait_for_lines(path, 2)
    disk.room = 100
    with caplog.at_level(logging.ERROR):
        serve(log, 5)
        wait_until(lambda: log.counts["disk"] == 1)
        serve(log, 5)
        wait_until(lambda: log.counts["disk"] == 2)
    assert "No space left on device" in caplog.messages[0]
    disk.room = 10**9
    serve(log, 5)
    log.close()
    assert log.counts == {"written": 2, "queue": 0, "disk": 2}
    written = path.read_text().splitlines()
    assert len(written[2]) == 100
    assert json.loads(written[3]) == {"left_out": 2}
    assert json.loads(written[4]) == {"kvrouter_request_log": 1, "block_size": 16}
    told: list[str] = []
    assert len(read_workload(path, remarked=told.append).requests) == 2
    assert [line.rpartition(": ")[2] for line in told] == [
        "line 3 was cut off in the middle, as by a crash or a full disk, and is left out",
        "they are missing",
    ]


def test_a_log_that_a_crash_cut_off_is_gone_on_with_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for _ in range(2):
        log = log_of(path)
        log.start()
        serve(log, 5)
        log.close()
        path.write_bytes(path.read_bytes()[:-40])
    assert len(path.read_text().splitlines()) == 4
    with pytest.raises(InputError, match="no request"):
        read_workload(path)
    log = log_of(path)
    log.start()
    serve(log, 5)
    log.close()
    assert len(read_workload(path).requests) == 1


def test_the_end_does_not_wait_for_a_disk_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk()
    disk.room = 0
    monkeypatch.setattr("router.observability.requestlog_file.os.write", disk.write)
    log = log_of(tmp_path / "log.jsonl")
    log.start()
    serve(log, 5)
    log.close()
    assert log.counts == {"written": 0, "queue": 0, "disk": 1}


def test_several_processes_write_one_log_and_say_who(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logs = [log_of(path, alone=False) for _ in range(2)]
    for log in logs:
        log.start()
        serve(log, 5, 6)
    for log in logs:
        serve(log, 5, 7)
        log.close()
    workload = read_workload(path)
    assert len({line["writer"] for line in lines(path)}) == 2
    assert len(workload.requests) == 4
    assert len({block for request in workload.requests for block in request.blocks}) == 6


def test_the_metric_says_what_became_of_every_line(tmp_path: Path) -> None:
    log = log_of(tmp_path / "log.jsonl", capacity=1)
    for _ in range(3):
        serve(log, 5)
    registry = CollectorRegistry()
    registry.register(RequestLogMetrics(log))
    log.start()
    log.close()
    page = generate_latest(registry).decode()
    assert 'kvrouter_request_log_lines_total{result="written"} 1.0' in page
    assert 'kvrouter_request_log_lines_total{result="queue"} 2.0' in page
    assert 'kvrouter_request_log_lines_total{result="disk"} 0.0' in page


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.requests: .*nowhere/log\.jsonl cannot be written"):
        log_of(tmp_path / "nowhere" / "log.jsonl").start()
