"""The built-in plugin types by name. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from router.plugins.deciders.fixed import AlwaysDisaggPdDecider, NeverDisaggPdDecider
from router.plugins.deciders.prefix_based_pd import PrefixBasedPdDecider
from router.plugins.pickers.max_score import MaxScorePicker
from router.plugins.scorers.active_request import ActiveRequestScorer
from router.plugins.scorers.kv_cache_utilization import KvCacheUtilizationScorer
from router.plugins.scorers.load_aware import LoadAwareScorer
from router.plugins.scorers.prefix_cache import PrefixCacheScorer
from router.plugins.scorers.queue import QueueScorer
from router.plugins.scorers.running_requests_size import RunningRequestsSizeScorer
from router.plugins.scorers.token_load import TokenLoadScorer
from router.scheduling.registry import Factory, Registry

BUILTIN: Mapping[str, Factory] = MappingProxyType(
    {
        "active-request-scorer": ActiveRequestScorer.create,
        "kv-cache-utilization-scorer": KvCacheUtilizationScorer.create,
        "load-aware-scorer": LoadAwareScorer.create,
        "prefix-cache-scorer": PrefixCacheScorer.create,
        "queue-scorer": QueueScorer.create,
        "running-requests-size-scorer": RunningRequestsSizeScorer.create,
        "token-load-scorer": TokenLoadScorer.create,
        "max-score-picker": MaxScorePicker.create,
        "always-disagg-pd-decider": AlwaysDisaggPdDecider.create,
        "never-disagg-pd-decider": NeverDisaggPdDecider.create,
        "prefix-based-pd-decider": PrefixBasedPdDecider.create,
    }
)


def builtin_registry() -> Registry:
    """Built-in types and those of installed packages."""
    return Registry(BUILTIN)
