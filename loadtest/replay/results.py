"""Results of one replay, request by request, and what they come to. PURE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from router.observability.events import Outcome


class Result(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request. Times in seconds, lengths in tokens."""

    number: int
    at: float
    """When it arrived; in a closed loop that depends on the policy."""
    prompt: int
    output: int
    cached: int
    endpoint: str | None
    prefill_endpoint: str | None
    outcome: Outcome
    ttft_s: float | None
    e2e_s: float
    reason: str | None = None
    """Of the decision."""
    predicted_s: float | None = None
    """From the decode leg's dispatch to the first token, as an engine model expected; None without one."""
    answered_s: float | None = None
    """The same as it was."""

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for an answer of one."""
        if self.ttft_s is None or self.output < 2:
            return None
        return (self.e2e_s - self.ttft_s) / (self.output - 1)


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did."""

    endpoint: str
    busy_s: float
    prefilled: int
    preempted: int


class Outlook(msgspec.Struct, frozen=True):
    """Mean TTFT over one short window, in seconds, everything else being equal."""

    chosen: float
    """As the policy placed the requests."""
    best: float
    """As somebody who knows the future placed them."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One workload under one policy with one seed."""

    policy: str
    seed: int
    results: Sequence[Result]
    """In order of their end."""
    shares: Sequence[Share]
    ended_s: float
    outlooks: Sequence[Outlook] = ()
    cpu_s: float
    """CPU time of the whole replay."""
    decide_s: float
    """Median time of a decision, index lookup included; a median because the machine has other things to do too."""


class Slo(msgspec.Struct, frozen=True):
    ttft_s: float
    tpot_s: float

    def __str__(self) -> str:
        return f"{self.ttft_s:g}s/{self.tpot_s * 1000:g}ms"

    def met(self, result: Result) -> bool:
        if result.outcome is not Outcome.OK or result.ttft_s is None or result.ttft_s > self.ttft_s:
            return False
        return result.tpot_s is None or result.tpot_s <= self.tpot_s


def slo_headers(slo: Slo) -> dict[str, str]:
    """How a client names its objectives."""
    return {"x-llm-d-slo-ttft-ms": f"{slo.ttft_s * 1e3:g}", "x-llm-d-slo-tpot-ms": f"{slo.tpot_s * 1e3:g}"}


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if not values:
            return cls(mean=math.nan, p50=math.nan, p90=math.nan, p99=math.nan)
        ordered = sorted(values)
        return cls(
            mean=math.fsum(ordered) / len(ordered),
            p50=quantile(ordered, 0.5),
            p90=quantile(ordered, 0.9),
            p99=quantile(ordered, 0.99),
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between the ranks of the sorted, non-empty `ordered`."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class Window(msgspec.Struct, frozen=True):
    """The part of the workload that counts, in seconds of arrival; the rest warms up and cools down."""

    begin: float = 0.0
    end: float = math.inf

    def counts(self, result: Result) -> bool:
        return self.begin <= result.at < self.end


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to, over the requests that count."""

    requests: int
    failed: int
    """Not answered to the end."""
    failures: Mapping[str, int] = {}
    """The same by outcome."""
    ttft: Spread
    tpot: Spread
    e2e: Spread
    goodput: Sequence[float]
    """For each SLO pair, the share of requests that met both (0..1)."""
    hit_rate: float
    """Prompt tokens that came from a cache (0..1)."""
    prefilled: int
    """Prompt tokens computed, over the whole run."""
    load_spread: float
    """The most requests that one endpoint had of those that count, over the mean."""
    busy_spread: float
    """The same over seconds that engines computed, in the whole run."""
    preempted: int
    reasons: Mapping[str, int]
    """Decisions by their reason."""
    prediction_error: float | None
    """Median of |predicted - real| / real over times to first token, where the policy has an engine model."""
    over_clairvoyant: float | None
    """TTFT on the windows looked at, over what a search that knows the future found there."""
    decisions_per_s: float
    """One over the median time of a decision, index lookup included."""
    requests_per_s: float
    """How fast the replay itself went, by CPU time."""


def summarize(run: Run, slos: Sequence[Slo], window: Window) -> Summary:
    counted = [result for result in run.results if window.counts(result)]
    good = [result for result in counted if result.outcome is Outcome.OK]
    prompt = sum(result.prompt for result in good)
    taken = dict.fromkeys((share.endpoint for share in run.shares), 0)
    for result in good:
        if result.endpoint is not None:
            taken[result.endpoint] += 1
        if result.prefill_endpoint is not None:
            taken[result.prefill_endpoint] += 1
    return Summary(
        requests=len(counted),
        failed=len(counted) - len(good),
        failures=dict(Counter(result.outcome.value for result in counted if result.outcome is not Outcome.OK)),
        ttft=Spread.of([result.ttft_s for result in good if result.ttft_s is not None]),
        tpot=Spread.of([tpot for result in good if (tpot := result.tpot_s) is not None]),
        e2e=Spread.of([result.e2e_s for result in good]),
        goodput=[sum(map(slo.met, counted)) / max(len(counted), 1) for slo in slos],
        hit_rate=sum(result.cached for result in good) / max(prompt, 1),
        prefilled=sum(share.prefilled for share in run.shares),
        load_spread=_over_mean(list(taken.values())),
        busy_spread=_over_mean([share.busy_s for share in run.shares]),
        preempted=sum(share.preempted for share in run.shares),
        reasons=dict(Counter(result.reason for result in counted if result.reason is not None)),
        prediction_error=_prediction_error(good),
        over_clairvoyant=_over_best(run.outlooks),
        decisions_per_s=1.0 / run.decide_s if run.decide_s else math.inf,
        requests_per_s=len(run.results) / run.cpu_s if run.cpu_s else math.inf,
    )


def _prediction_error(results: Sequence[Result]) -> float | None:
    errors = [
        abs(result.predicted_s - result.answered_s) / result.answered_s
        for result in results
        if result.predicted_s is not None and result.answered_s
    ]
    return median(errors) if errors else None


def _over_best(outlooks: Sequence[Outlook]) -> float | None:
    best = sum(outlook.best for outlook in outlooks)
    return sum(outlook.chosen for outlook in outlooks) / best if best else None


def _over_mean(values: Sequence[float]) -> float:
    total = sum(values)
    return max(values) * len(values) / total if total else 1.0
