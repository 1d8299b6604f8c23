"""The command line starts engines, says where they are, and stops on a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtest.simulator import EngineConfig, SimulatorConfigError
from loadtest.simulator.cli import main, plan
from tests.support.simulator import http


@asynccontextmanager
async def simulator(*flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest.simulator", "--port", "0", "--profile", "instant", *flags),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def urls(process: asyncio.subprocess.Process, count: int) -> list[str]:
    assert process.stdout is not None
    lines = [(await asyncio.wait_for(process.stdout.readline(), 60)).decode() for _ in range(count)]
    assert all(line.rstrip().endswith("ready") for line in lines)
    return [line.split()[0] for line in lines]


async def test_engines_are_listed_and_serve_until_they_are_told_to_stop() -> None:
    async with simulator("--count", "2", "--model", "m", "--lora", "a", "--no-kv-events") as process:
        async with http() as client:
            for url in await urls(process, 2):
                models = (await client.get(f"{url}/v1/models")).json()["data"]
                assert [card["id"] for card in models] == ["m", "a"]
                assert (await client.get(f"{url}/kv_event_sources")).json() == {}
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_a_process_whose_engines_have_all_died_ends_with_an_error() -> None:
    async with simulator() as process:
        (url,) = await urls(process, 1)
        async with http() as client:
            await client.post(f"{url}/sim/faults", json={"die": True})
        assert await asyncio.wait_for(process.wait(), 20) == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--profile", "nothing"], "profile"),
        (["--num-gpu-blocks", "1"], "num_gpu_blocks"),
        (["--num-gpu-blocks", "10", "--max-model-len", "1000"], "max_model_len"),
        (["--tokenizer", "nowhere"], "tokenizer"),
        (["--count", "0"], "count"),
        (["--faults", '{"explode": 1}'], "explode"),
        (["--faults", "{"], "--faults"),
        (["--faults", '{"error_rate": 7}'], "faults.error_rate"),
        (["--faults", '{"fail_paths": {"/health": 7}}'], "fail_paths"),
        (["--port", "70000"], "port"),
        (["--port", "-1"], "port"),
        (["--port", "65530", "--count", "10"], "port"),
        (["--port", "http"], "--port"),
        (["--kv-events-port", "65000"], "kv_events_port"),
        (["--block-size", "0"], "block_size"),
        (["--num-gpu-blocks", "0"], "num_gpu_blocks"),
        (["--speed", "0"], "speed"),
        (["--speed", "nan"], "speed"),
        (["--speed", "inf"], "speed"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
        (["--max-num-batched-tokens", "0"], "max_num_batched_tokens"),
        (["--max-num-queued-reqs", "-1"], "max_num_queued_reqs"),
        (["--max-model-len", "0"], "max_model_len"),
        (["--dp-size", "0"], "dp_size"),
        (["--transfer-base-ms", "-1"], "transfer_base_ms"),
        (["--shutdown-timeout", "-1"], "shutdown_timeout_s"),
        (["--model", ""], "model"),
        (["--lora", ""], "model"),
        (["--host", "192.0.2.1"], "host"),
        (["--host", "no host"], "host"),
        (["--profile", "nothing.yaml"], "profile"),
        (["--nothing"], "--nothing"),
        (["word"], "word"),
    ],
)
def test_a_setting_that_cannot_be_is_named_in_one_line(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--port", "0", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("kvrouter sim: ")
    assert named in line
    assert "Errno" not in line


def test_a_port_in_use_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--port", str(taken.getsockname()[1])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "in use" in line


@pytest.mark.parametrize(
    "text",
    ["[", "a: 1", "- 1", "a: {chunk: 0}", "a: {kv_tokens: many}", "{}"],
)
def test_a_profile_that_is_none_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "engine.yaml"
    profile.write_text(text, encoding="utf-8")
    assert main(["--port", "0", "--profile", str(profile)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "engine.yaml" in line


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_host_may_be_given_as_it_stands_in_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as taken:
        assert main(["--host", "[::1]", "--port", str(taken.getsockname()[1])]) == 2
    assert "in use on [::1]" in capsys.readouterr().err


def test_engines_take_ports_in_a_row() -> None:
    configs = plan(EngineConfig(port=8100, kv_events_port=5600, dp_size=2), 3)
    assert [c.port for c in configs] == [8100, 8101, 8102]
    assert [c.kv_events_port for c in configs] == [5600, 5602, 5604]
    with pytest.raises(SimulatorConfigError, match="count"):
        plan(EngineConfig(), 0)
