from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.replay.inputs import read_workload
from loadtest.replay.lines import InputError
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


def test_a_mark_of_byte_order_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for text in (json.dumps(line(0, 9, [])), "arrival_s,input_length,output_length\n0,9,5\n"):
        path.write_text("\ufeff" + text, encoding="utf-8")
        assert [request.prompt for request in read_workload(path).requests] == [9]


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
        (
            '{"timestamp": 1, "outcome": "refused"}\n',
            r'line 1: this looks like a piece of a request log: .* begins with \{"kvrouter_request_log"',
        ),
        ('{"timestamp": "soon"}\n', "line 1: Expected"),
        ('{"kvrouter_request_log": 9}\n', "request log version 9 is unknown"),
        ('{"kvrouter_request_log": 1, "block_size": 16}\n', "holds no request that can be replayed"),
        ('{"kvrouter_request_log": 1}\n{"timestamp": 1}\n', r"1 request whose lengths are unknown .* is left out\)"),
        ('{"timestamp": 0, "inp', "line 1: Input data was truncated: mend the line"),
        ('{"kvrouter_request_log": 1}\n{"timestamp": 0, "inp\n', "line 2: .*: mend the line"),
        (
            '{"timestamp": 0, "input_length": 100, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5]}\n',
            "agree with no usual block size",
        ),
        ("a,b\n1,2\n", "must name the columns"),
        ("timestamp,input_length,output_length\n0,x,1\n", "line 2: input_length is 'x': give a whole number"),
        ("timestamp,input_length,output_length\n0,1.5,1\n", "line 2: input_length is '1.5': give a whole number"),
        ("timestamp,input_length,output_length\n0,1,\n", "line 2: output_length is empty: give a whole number"),
        ("timestamp,input_length,output_length\n0,1\n", "line 2: output_length is empty"),
        ("timestamp,input_length,output_length\n0,1,024,9\n", "line 2: it has 4 cells for 3 columns"),
        ("timestamp,input_length,output_length\nnoon,1,1\n", "line 2: timestamp is 'noon': give a number"),
        ("timestamp,input_length,output_length,think\n0,1,1,long\n", "line 2: think is 'long': give a number"),
        ("timestamp;input_length;output_length\n0;1;1\n", "with commas between"),
        ("# a comment\n", "is no JSON, and as CSV"),
        ('[{"timestamp": 0}]', "is one JSON array: write an object a line"),
        ('timestamp,input_length,output_length\n0,"1,1\n', "line 2: unexpected end of data: mend the line"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}\n', "negative hash_ids"),
        (
            "arrival_s,input_length,output_length\n0,1,1\n1e300,1,1\n",
            r"from timestamp 0 ms to 1e\+303 ms, which is more than",
        ),
        ("arrival_s,input_length,output_length,think\n0,1,1,-5\n", "line 2: think must be from 0 to 10,000,000 s"),
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


def test_columns_stand_in_any_order_and_whole_numbers_may_have_a_point(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("output_length, model, input_length , arrival_s\r\n7.0,m,1024.0, 0.5\r\n\r\n3,m,9,1\r\n")
    assert [(r.prompt, r.output) for r in read_workload(path).requests] == [(1024, 7), (9, 3)]


def test_prompts_whose_ids_do_not_fit_the_block_size_are_counted(tmp_path: Path) -> None:
    told: list[str] = []
    path = write(tmp_path / "t.jsonl", *[line(n, 1024, [[0, 2 if n < 6 else 8]]) for n in range(10)])
    assert read_workload(path, remarked=told.append).block_size == 512
    assert told == [
        f"{path}: 4 of 10 prompts have another number of hash_ids than blocks of 512 tokens: "
        "what they share is told wrongly"
    ]
    told.clear()
    read_workload(write(path, *[line(n, 1024, [[0, 2]]) for n in range(10)]), remarked=told.append)
    assert not told


HEAD = '{"kvrouter_request_log": 1, "block_size": 16}\n'
GOOD = json.dumps(line(0, 40, [[0, 2]])) + "\n"
CUT = GOOD[:30]


def test_a_line_that_a_crash_cut_off_is_left_out_with_a_word(tmp_path: Path) -> None:
    path, told = tmp_path / "requests.log", list[str]()
    for text, number in (
        (HEAD + GOOD + CUT, 3),
        (HEAD + GOOD + CUT + "\n" + HEAD + GOOD, 3),
        (HEAD + GOOD + "\0" * 9, 3),
    ):
        path.write_text(text)
        assert len(read_workload(path, remarked=told.append).requests) == text.count(GOOD)
        assert (
            told.pop()
            == f"{path}: line {number} was cut off in the middle, as by a crash or a full disk, and is left out"
        )
    path.write_text(HEAD + GOOD)
    read_workload(path, remarked=told.append)
    assert not told


def test_a_broken_line_in_the_middle_is_named_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    for text in (HEAD + GOOD + CUT + "\n" + GOOD, HEAD + CUT + "\n" + CUT + "\n" + HEAD, HEAD + GOOD + CUT + "\n"):
        path.write_text(text)
        broken = text.splitlines().index(CUT) + 1
        with pytest.raises(InputError, match=f"line {broken}: .*: mend the line or take it out"):
            read_workload(path)


def test_requests_that_the_log_lacks_are_told_of(tmp_path: Path) -> None:
    path, told = tmp_path / "requests.log", list[str]()
    path.write_text(
        HEAD + GOOD + '{"left_out": 3}\n' + GOOD + '{"left_out": 4}\n{"timestamp": 9, "outcome": "refused"}\n'
    )
    assert len(read_workload(path, remarked=told.append).requests) == 2
    assert told[0].startswith(f"{path}: 1 request whose lengths are unknown")
    assert told[1] == f"{path}: the router could not write 7 requests: they are missing"


def test_several_writers_of_one_log_count_their_blocks_apart(tmp_path: Path) -> None:
    path = tmp_path / "requests.log"
    heads = [json.dumps({"kvrouter_request_log": 1, "block_size": 16, "writer": name}) for name in "ab"]
    asked = [json.dumps(line(at, 40, [[0, 2]], writer=name)) for at, name in enumerate("aba")]
    more = json.dumps(line(3, 40, [[0, 1], [2, 1]], writer="a"))
    path.write_text("\n".join([heads[0], asked[0], heads[1], asked[1], asked[2], more]))
    first, other, again, later = (list(r.blocks) for r in read_workload(path).requests)
    assert again == first
    assert later[0] == first[0]
    assert len({*first, *other, *later}) == 5


def test_a_block_size_that_disagrees_with_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(HEAD + GOOD)
    with pytest.raises(InputError, match="says that its blocks have 16 tokens: leave --block-size 32 out"):
        read_workload(path, block_size=32)
    assert read_workload(path, block_size=16).block_size == 16


def test_a_missing_or_damaged_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_workload(tmp_path / "none")
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(InputError, match="damaged gzip"):
        read_workload(path)
