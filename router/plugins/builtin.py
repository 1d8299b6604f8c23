"""The built-in plugin types by name. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from router.plugins.deciders.cost_pd import CostPdDecider
from router.plugins.deciders.fixed import AlwaysDisaggPdDecider, NeverDisaggPdDecider
from router.plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from router.plugins.filters.active_request import ActiveRequestFilter
from router.plugins.filters.bounded_load import BoundedLoadFilter
from router.plugins.filters.by_label import ByLabel
from router.plugins.filters.label_selector import LabelSelectorFilter
from router.plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from router.plugins.filters.role import DecodeFilter, PrefillFilter
from router.plugins.filters.session_affinity import SessionAffinityFilter
from router.plugins.filters.utilization import UtilizationFilter
from router.plugins.pickers.max_score import MaxScorePicker
from router.plugins.pickers.random_ import RandomPicker
from router.plugins.pickers.round_robin import RoundRobinPicker
from router.plugins.pickers.weighted_random import WeightedRandomPicker
from router.plugins.scorers.active_request import ActiveRequestScorer
from router.plugins.scorers.context_length_aware import ContextLengthAware
from router.plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from router.plugins.scorers.load_aware import LoadAwareScorer
from router.plugins.scorers.lora_affinity import LoraAffinityScorer
from router.plugins.scorers.no_hit_lru import NoHitLruScorer
from router.plugins.scorers.predicted_latency import PredictedLatencyScorer
from router.plugins.scorers.prefix_cache import PrefixCacheScorer
from router.plugins.scorers.queue import QueueScorer
from router.plugins.scorers.running_requests_size import RunningRequestsSizeScorer
from router.plugins.scorers.session_affinity import SessionAffinityScorer
from router.plugins.scorers.token_load import TokenLoadScorer
from router.scheduling.registry import Factory, Registry

BUILTIN: Mapping[str, Factory] = MappingProxyType(
    {
        "active-request-filter": ActiveRequestFilter.create,
        "bounded-load-filter": BoundedLoadFilter.create,
        "by-label": ByLabel.create,
        "decode-filter": DecodeFilter.create,
        "label-selector-filter": LabelSelectorFilter.create,
        "prefill-filter": PrefillFilter.create,
        "prefix-cache-affinity-filter": PrefixCacheAffinityFilter.create,
        "session-affinity-filter": SessionAffinityFilter.create,
        "utilization-filter": UtilizationFilter.create,
        "active-request-scorer": ActiveRequestScorer.create,
        "context-length-aware": ContextLengthAware.create,
        "kv-cache-utilization-scorer": KvCacheUtilizationScorer.create,
        "load-aware-scorer": LoadAwareScorer.create,
        "lora-affinity-scorer": LoraAffinityScorer.create,
        "no-hit-lru-scorer": NoHitLruScorer.create,
        "predicted-latency-scorer": PredictedLatencyScorer.create,
        "prefix-cache-scorer": PrefixCacheScorer.create,
        "queue-scorer": QueueScorer.create,
        "running-requests-size-scorer": RunningRequestsSizeScorer.create,
        "session-affinity-scorer": SessionAffinityScorer.create,
        "token-load-scorer": TokenLoadScorer.create,
        "max-score-picker": MaxScorePicker.create,
        "random-picker": RandomPicker.create,
        "round-robin-picker": RoundRobinPicker.create,
        "weighted-random-picker": WeightedRandomPicker.create,
        "always-disagg-pd-decider": AlwaysDisaggPdDecider.create,
        "never-disagg-pd-decider": NeverDisaggPdDecider.create,
        "cost-pd-decider": CostPdDecider.create,
        "prefix-based-pd-decider": PrefixBasedPdDecider.create,
    }
)


def builtin_registry() -> Registry:
    """Built-in types and those of installed packages."""
    return Registry(BUILTIN)
