"""Status: the router's own counts, read from its ``/metrics`` page. PURE."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families


class Status(msgspec.Struct, frozen=True, kw_only=True):
    requests: int = 0
    failed: int = 0
    """Requests that ended otherwise than well, and not because their client left."""
    prompt_tokens: float = 0.0
    matched_tokens: float = 0.0
    """Prompt tokens expected in the cache of the engine they were sent to."""
    disaggregated: int = 0
    """Requests that were prefilled on an engine of their own."""
    inflight: Mapping[str, int] = {}
    """Endpoint id -> requests."""

    @property
    def hit_rate(self) -> float | None:
        return self.matched_tokens / self.prompt_tokens if self.prompt_tokens else None

    def line(self) -> str:
        """``requests 12 | hit rate 63 % | prefilled apart 3 | in flight prefill-0:0 decode-0:2``."""
        hit = "-" if self.hit_rate is None else f"{self.hit_rate:.0%}"
        flying = "  ".join(f"{name} {count}" for name, count in self.inflight.items())
        failed = f" ({self.failed} failed)" if self.failed else ""
        total = f"requests {self.requests}{failed} | hit rate {hit} | prefilled apart {self.disaggregated}"
        return f"{total} | in flight: {flying}"


_GOOD = frozenset({"ok", "client_gone"})


def read_status(page: str) -> Status:
    """From the text of a ``/metrics`` page; what is not on it counts as zero."""
    requests = failed = disaggregated = 0
    prompt = matched = 0.0
    inflight: dict[str, int] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            match sample.name:
                case "kvrouter_requests_total":
                    requests += int(sample.value)
                    failed += 0 if sample.labels["outcome"] in _GOOD else int(sample.value)
                case "kvrouter_prompt_tokens_total":
                    prompt += sample.value
                case "kvrouter_matched_tokens_total":
                    matched += sample.value
                case "kvrouter_prefill_leg_seconds_count":
                    disaggregated += int(sample.value)
                case "kvrouter_inflight_requests":
                    inflight[sample.labels["endpoint"]] = int(sample.value)
    return Status(
        requests=requests,
        failed=failed,
        prompt_tokens=prompt,
        matched_tokens=matched,
        disaggregated=disaggregated,
        inflight=inflight,
    )
