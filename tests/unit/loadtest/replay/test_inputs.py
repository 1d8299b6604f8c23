from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.replay.inputs import InputError, read_workload
from router.core import NO_MATCH, Candidate, Decision, Endpoint, EndpointState, Inflight, TokenizedPrompt, TokenSource
from router.observability.events import Outcome
from router.observability.requestlog import RequestLog
from tests.support.journey import request
from tests.support.observations import ended


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(at: float, tokens: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": ids, **more}


def test_ids_stand_one_by_one_or_in_runs_and_only_full_blocks_count(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", line(1000, 1500, [4, 5, 6]), line(3000, 1100, [[4, 2], 9]))
    workload = read_workload(path)
    assert workload.block_size == 512
    assert [list(request.blocks) for request in workload.requests] == [[4, 5], [4, 5]]
    assert [request.at for request in workload.requests] == [0.0, 2.0]


def test_a_gzipped_trace_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(gzip.compress(json.dumps(line(0, 1024, [[0, 2]])).encode()))
    assert list(read_workload(path).requests[0].blocks) == [0, 1]


@pytest.mark.parametrize("size", [16, 64, 512])
@pytest.mark.parametrize("partial", [True, False])
def test_the_block_size_follows_from_lengths_and_numbers_of_ids(tmp_path: Path, size: int, partial: bool) -> None:
    lengths = [1000 + 37 * i for i in range(50)]
    lines = [line(0, n, [[0, -(-n // size) if partial else n // size]]) for n in lengths]
    assert read_workload(write(tmp_path / "t.jsonl", *lines)).block_size == size


def test_a_csv_of_lengths_has_prompts_that_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_length,output_length\n2.5,1024,7\n1.5,600,3\n")
    first, second = read_workload(path).requests
    assert (first.at, first.prompt, first.output) == (0.0, 600, 3)
    assert (second.at, second.prompt) == (1.0, 1024)
    assert not set(first.blocks) & set(second.blocks)


def test_turns_wait_where_the_trace_has_think_times_unless_told_otherwise(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        line(0, 512, [1], session=3, turn=0, think=0.5),
        line(9000, 512, [1], session=3, turn=1, think=4.0),
    )
    assert [request.think for request in read_workload(path).requests] == [None, 4.0]
    assert not read_workload(path, closed=False).closed


def test_ids_that_are_hashes_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", line(0, 1024, [2**61, 2**50]), line(1, 1024, [2**61, 2**40]))
    assert [list(request.blocks) for request in read_workload(path).requests] == [[0, 1], [0, 2]]


def test_the_routers_own_log_is_replayed_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    chosen = Candidate(EndpointState(endpoint=Endpoint(id="a", url="http://a")), Inflight(), NO_MATCH, None)
    times = iter((1000.0, 1005.0, 1005.0, 1010.0, 1015.0, 1015.0))
    for incarnation in range(2):
        log = RequestLog(path, wall=times.__next__)
        log.start()
        for turn in range(2):
            asked = request(routing_headers={"x-session-id": "s"})
            prompt = TokenizedPrompt(
                token_ids=(),
                source=TokenSource.LOCAL,
                token_count=40,
                block_size=16,
                block_hashes=[2**63 + incarnation, 77 + turn],
            )
            log.on_decision(asked, prompt, Decision(decode=(chosen,)))
            log.on_end(ended(request=asked, prompt_tokens=40, output_tokens=9, e2e_s=2.0))
        log.on_end(ended(request=asked, outcome=Outcome.CLIENT_GONE, output_tokens=None))
        log.close()
    workload = read_workload(path)
    assert workload.block_size == 16
    assert [r.at for r in workload.requests] == pytest.approx([0.0, 5.0, 10.0, 15.0])
    assert [list(r.blocks) for r in workload.requests] == [[0, 1], [0, 2], [3, 4], [3, 5]]
    assert [(r.prompt, r.output) for r in workload.requests] == [(40, 9)] * 4
    assert not workload.closed
    closed = read_workload(path, closed=True)
    assert [r.think for r in closed.requests] == [None, pytest.approx(3.0), None, pytest.approx(3.0)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("{}\n", "line 1: a request needs timestamp"),
        ('{"timestamp": "soon"}\n', "line 1: Expected"),
        ('{"kvrouter_request_log": 9}\n', "request log version 9 is unknown"),
        ('{"kvrouter_request_log": 1, "block_size": 16}\n', "holds no request"),
        ("a,b\n1,2\n", "must name the columns"),
        ("timestamp,input_length,output_length\n0,x,1\n", "line 2"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n', "negative hash_ids"),
        ("arrival_s,input_length,output_length\nnan,1,1\n", "line 2: a time is not finite"),
        ("arrival_s,input_length,output_length\n0,1,1\ninf,1,1\n", "line 3: a time is not finite"),
        ("timestamp,input_length,output_length\n0,-5,1\n", "line 2: input_length and output_length must be from 0"),
        ('{"timestamp": 0, "input_length": 1000000000000, "output_length": 1}\n', "line 1: input_length and output"),
        (
            '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [[0, 99999999999]]}\n',
            "line 1: there are more hash_ids than input_length has tokens",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_workload(path)


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_workload(tmp_path / "none")
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(InputError, match="damaged gzip"):
        read_workload(path)
