"""``python -m loadtest.compare``: one fixed load under the default policy and under round robin, side by side.

For each policy it starts simulated engines and a router, lets locust run the profile, and tells how many prompt tokens
the engines had to compute and how evenly the requests were spread. Exit code 1 when a request failed or a demand
(``--demand-ratio``, ``--demand-spread``) was not met.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from rich.console import Console
from rich.table import Table

from loadtest import locust_run
from loadtest.arguments import Parser, complain, positive, whole, writable
from loadtest.cluster import Cluster, cluster
from loadtest.demo.children import ChildFailed
from loadtest.profile import PROFILES, LoadProfile, ProfileError, load_profile

ROUND_ROBIN = {"scheduling": {"profiles": {"decode": {"filters": [], "scorers": [], "picker": "round-robin-picker"}}}}
POLICIES: Mapping[str, Mapping[str, Any]] = {"default": {}, "round-robin": ROUND_ROBIN}
"""Name -> settings of the router."""

SAMPLE_S = 0.1
BUSY = 8
"""Spread is looked at only while that many requests an engine are in flight: fewer cannot be spread evenly."""


class Outcome(NamedTuple):
    """One policy's run."""

    policy: str
    result: locust_run.Result
    seconds: float
    prompt_tokens: int
    """As the engines count them (tokens looked up in their prefix cache)."""
    computed_tokens: int
    """Those not found there."""
    samples: Sequence[Mapping[str, int]]
    """Requests in flight by endpoint, every `SAMPLE_S` seconds."""

    @property
    def busy_samples(self) -> list[float]:
        return [spread for sample in self.samples if (spread := max_over_mean(sample)) is not None]

    @property
    def imbalance(self) -> float | None:
        """Mean of max/mean in flight while busy; None when it never was."""
        return statistics.fmean(self.busy_samples) if self.busy_samples else None


def max_over_mean(sample: Mapping[str, int]) -> float | None:
    """How uneven one sample is (1.0 is even); None when it is not busy enough to tell."""
    total = sum(sample.values())
    return max(sample.values()) * len(sample) / total if sample and total >= BUSY * len(sample) else None


def metric(page: str, name: str) -> Iterator[tuple[str, float]]:
    """(label text, value) of each series of a metric on a Prometheus page."""
    for line in page.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in ("{", " "):
            labels, _, value = line[len(name) :].rpartition(" ")
            yield labels.strip("{}"), float(value)


def in_flight(page: str) -> dict[str, int]:
    """Endpoint -> requests, from the router's /metrics."""
    return {labels: int(value) for labels, value in metric(page, "kvrouter_inflight_requests")}


def cache_counts(client: httpx.Client, engines: Sequence[str]) -> tuple[int, int]:
    """(prompt tokens looked up, prompt tokens found) over all engines."""
    looked = found = 0.0
    for engine in engines:
        page = client.get(f"{engine}/metrics").text
        looked += sum(value for _, value in metric(page, "vllm:prefix_cache_queries_total"))
        found += sum(value for _, value in metric(page, "vllm:prefix_cache_hits_total"))
    return int(looked), int(found)


def run_policy(policy: str, path: Path, profile: LoadProfile, engines: int) -> Outcome:
    """Raises ChildFailed, RuntimeError, httpx.HTTPError."""
    with (
        tempfile.TemporaryDirectory(prefix="kvrouter-") as folder,
        cluster(engines, profile.simulator, POLICIES[policy]) as running,
        httpx.Client(timeout=10, trust_env=False) as client,
    ):
        began = time.monotonic()
        process = locust_run.start(running.router, path, profile, Path(folder))
        try:
            samples = _sample_until_end(client, running, process)
            result = locust_run.finish(process, Path(folder))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        seconds = time.monotonic() - began
        looked, found = cache_counts(client, running.engines)
    return Outcome(policy, result, seconds, looked, looked - found, samples)


def _sample_until_end(client: httpx.Client, running: Cluster, process: subprocess.Popen[bytes]) -> list[dict[str, int]]:
    samples = []
    due = time.monotonic()
    while process.poll() is None:
        samples.append(in_flight(client.get(f"{running.router}/metrics").text))
        due = max(due + SAMPLE_S, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
    return samples


def table(outcomes: Sequence[Outcome]) -> Table:
    """The last policy is what the others are compared with."""
    last = outcomes[-1].computed_tokens
    made = Table(title="One load, several policies")
    for column in ("", *(outcome.policy for outcome in outcomes)):
        made.add_column(column, justify="right" if column else "left")

    def row(name: str, values: Iterator[str]) -> None:
        made.add_row(name, *values)

    row("requests (failed)", (f"{o.result.requests} ({o.result.failures})" for o in outcomes))
    row("seconds", (f"{o.seconds:.0f}" for o in outcomes))
    row("prompt tokens", (f"{o.prompt_tokens:,}" for o in outcomes))
    row("computed prompt tokens", (f"{o.computed_tokens:,}" for o in outcomes))
    row(f"  over {outcomes[-1].policy}'s", (f"{o.computed_tokens / last:.2f}" if last else "-" for o in outcomes))
    row("hit rate as told to clients", (_share(o.result.hit_rate) for o in outcomes))
    row("max/mean in flight", ("-" if o.imbalance is None else f"{o.imbalance:.2f}" for o in outcomes))
    row("  over samples", (f"{len(o.busy_samples)} of {len(o.samples)}" for o in outcomes))
    for kind in ("TTFT", "ITL", "TPOT", "E2E"):
        row(f"{kind} ms, median / p95", (_ms(o.result.times.get(kind)) for o in outcomes))
    return made


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _ms(times: locust_run.Times | None) -> str:
    return "-" if times is None else f"{times.median:.0f} / {times.p95:.0f}"


def report(outcomes: Sequence[Outcome]) -> bytes:
    """What the table says, as JSON."""
    return msgspec.json.encode(
        [
            {
                "policy": o.policy,
                "requests": o.result.requests,
                "failures": o.result.failures,
                "seconds": round(o.seconds, 1),
                "prompt_tokens": o.prompt_tokens,
                "computed_tokens": o.computed_tokens,
                "hit_rate": o.result.hit_rate,
                "imbalance": o.imbalance,
                "busy_samples": len(o.busy_samples),
                "samples": len(o.samples),
                "times_ms": {kind: times._asdict() for kind, times in o.result.times.items()},
            }
            for o in outcomes
        ]
    )


def unmet(outcomes: Sequence[Outcome], *, ratio: float | None, spread: float | None) -> list[str]:
    """What failed or fell short, a sentence each; a demand of None is none."""
    complaints = [f"{o.policy}: {o.result.failures} requests failed" for o in outcomes if o.result.failures]
    first, last = outcomes[0], outcomes[-1]
    if ratio is not None and first.computed_tokens > ratio * last.computed_tokens:
        complaints.append(f"{first.policy} computed more than {ratio:g} of what {last.policy} did")
    if spread is not None and (first.imbalance is None or first.imbalance > spread):
        complaints.append(f"{first.policy} was spread worse than {spread:g}, or never busy enough to tell")
    return complaints


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="python -m loadtest.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--load-profile", default="multiturn", metavar="NAME|FILE")
    parser.add_argument("--engines", type=whole(1, 1024), default=4)
    parser.add_argument("--policy", action="append", choices=list(POLICIES), help="may be repeated; default: all")
    parser.add_argument("--json", type=writable, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--demand-ratio", type=positive, metavar="R", help="first policy's computed tokens over the last's"
    )
    parser.add_argument("--demand-spread", type=positive, metavar="R", help="first policy's mean of max/mean in flight")
    options = parser.parse_args(arguments)
    try:
        profile = load_profile(options.load_profile)
        path = PROFILES / f"{options.load_profile}.yaml"
        path = path if path.is_file() else Path(options.load_profile)
        outcomes = [run_policy(policy, path, profile, options.engines) for policy in options.policy or POLICIES]
    except (ProfileError, ChildFailed, RuntimeError, OSError, httpx.HTTPError) as error:
        return complain(error)
    Console().print(table(outcomes))
    if options.json:
        options.json.write_bytes(report(outcomes))
    complaints = unmet(outcomes, ratio=options.demand_ratio, spread=options.demand_spread)
    for complaint in complaints:
        sys.stderr.write(f"not met: {complaint}\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
