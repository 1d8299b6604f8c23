"""Processes for many replays at once, which end when whoever asked for them does."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from router.errors import ConfigError

_FAREWELL_S = 5.0


@contextmanager
def processes(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of that many. Left by an exception, it drops what waits and ends what runs.

    Raises `ConfigError` when one of them was ended by somebody else.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(max_workers=jobs, initializer=_ends_by_itself)
    # An interrupt in the middle of a fork would leave a child that nobody knows.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            pool.submit(_nothing)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield pool
    except BrokenProcessPool:
        raise ConfigError(
            "a process of the replay was ended from outside, as where memory is short: give fewer --jobs"
        ) from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        ours = set(multiprocessing.active_children()) - others
        for process in ours:
            process.terminate()
        for process in ours:
            process.join(_FAREWELL_S)
        raise
    pool.shutdown()


def _ends_by_itself() -> None:
    # Ctrl-C goes to every process of a terminal: this one has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _nothing() -> None:
    """What the first submission starts the processes with."""
