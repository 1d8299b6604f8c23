"""Replays in several processes end when they are told to, at once and without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from loadtest.demo.children import plain_environment
from loadtest.replay.processes import processes
from router.errors import ConfigError

ROOT = Path(__file__).parents[4]
pytestmark = pytest.mark.timeout(120)


def _sleeps() -> None:
    time.sleep(600)


def test_what_runs_and_what_waits_ends_with_an_exception() -> None:
    with pytest.raises(RuntimeError, match="enough"), processes(2) as pool:
        futures = [pool.submit(_sleeps) for _ in range(6)]
        while not any(future.running() for future in futures):
            time.sleep(0.01)
        raise RuntimeError("enough")
    for future in futures:
        with pytest.raises((CancelledError, BrokenProcessPool)):
            future.result(timeout=60)


def test_a_process_that_somebody_ended_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="ended from outside"), processes(1) as pool:
        pool.submit(os._exit, 9).result()


def test_results_come_as_from_any_pool() -> None:
    with processes(2) as pool:
        assert sorted(pool.map(abs, range(-3, 1))) == [0, 1, 2, 3]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are counted in /proc")
def test_an_interrupted_replay_leaves_nothing_behind() -> None:
    command = ["replay", "synthetic:agents", "--policy", "all", "--seeds", "20", "--jobs", "2"]
    replay = subprocess.Popen(
        [sys.executable, "-m", "router", *command],
        cwd=ROOT,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of some shells SIGINT is ignored, which children take over.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    listed = Path(f"/proc/{replay.pid}/task/{replay.pid}/children")
    while len(children := listed.read_text().split()) < 2:
        assert replay.poll() is None
        time.sleep(0.05)
    replay.send_signal(signal.SIGINT)
    out, err = replay.communicate()
    assert (replay.returncode, out, err) == (130, "", "")
    assert not any(Path(f"/proc/{child}").exists() for child in children)
