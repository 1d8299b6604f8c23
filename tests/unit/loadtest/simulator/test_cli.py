"""The command line starts engines, says where they are, and stops on a signal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from loadtest.simulator import EngineConfig, SimulatorConfigError
from loadtest.simulator.cli import app, plan
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
    ],
)
def test_a_setting_that_cannot_be_is_named(flags: list[str], named: str) -> None:
    result = CliRunner().invoke(app, ["--port", "0", *flags])
    assert result.exit_code == 2
    assert named in result.output


def test_engines_take_ports_in_a_row() -> None:
    configs = plan(EngineConfig(port=8100, kv_events_port=5600, dp_size=2), 3)
    assert [c.port for c in configs] == [8100, 8101, 8102]
    assert [c.kv_events_port for c in configs] == [5600, 5602, 5604]
    with pytest.raises(SimulatorConfigError, match="count"):
        plan(EngineConfig(), 0)
