"""locust as a subprocess: its import patches the standard library, which no other program of ours wants."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadtest.profile import LoadProfile

LOCUSTFILE = Path(__file__).parent / "locustfile.py"


class Times(NamedTuple):
    """Milliseconds."""

    median: float
    p95: float


class Result(NamedTuple):
    """A headless run, when it is over."""

    requests: int
    failures: int
    hit_rate: float | None
    """As clients were told it (usage), 0..1."""
    times: dict[str, Times]
    """TTFT, ITL, TPOT, E2E."""


class _Stat(msgspec.Struct):
    method: str
    response_times: dict[str, int] = {}


class _Sums(msgspec.Struct):
    requests: int
    failures: int
    hit_rate: float | None


def start(url: str, profile_path: Path, profile: LoadProfile, folder: Path) -> subprocess.Popen[bytes]:
    """A headless run against `url`; `finish` reads what it leaves in `folder`."""
    arguments = [
        *("--headless", "--host", url, "--load-profile", str(profile_path)),
        *("--users", str(profile.users), "--spawn-rate", str(profile.spawn_rate)),
        *("--run-time", f"{profile.run_time_s:g}s", "--only-summary", "--exit-code-on-error", "0"),
        *("--summary-json", str(folder / "sums.json"), "--json-file", str(folder / "stats")),
    ]
    with (folder / "locust.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def finish(process: subprocess.Popen[bytes], folder: Path) -> Result:
    """Waits for the end of a run. Raises RuntimeError with its last words when it did not end well."""
    if process.wait() != 0 or not (folder / "sums.json").exists():
        said = (folder / "locust.log").read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        raise RuntimeError("locust did not end well; it said last:\n" + "\n".join(said))
    sums = msgspec.json.decode((folder / "sums.json").read_bytes(), type=_Sums)
    stats = msgspec.json.decode((folder / "stats.json").read_bytes(), type=list[_Stat])
    times = {
        stat.method: _times(stat.response_times) for stat in stats if stat.method in ("TTFT", "ITL", "TPOT", "E2E")
    }
    return Result(sums.requests, sums.failures, sums.hit_rate, times)


def _times(histogram: dict[str, int]) -> Times:
    return Times(quantile(histogram, 0.5), quantile(histogram, 0.95))


def quantile(histogram: dict[str, int], share: float) -> float:
    """The value below which `share` of the counted values lie; `histogram` is value -> count, as locust keeps it."""
    wanted = share * sum(histogram.values())
    seen = 0
    for value in sorted(histogram, key=float):
        seen += histogram[value]
        if seen >= wanted:
            return float(value)
    return 0.0
