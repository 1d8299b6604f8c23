"""What tokenization, the index and the policy are given."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kvindex.memory import MemoryIndex
from router.controls import EngineTokenize
from router.errors import ConfigError
from router.indexing import IndexingSettings
from router.observability.requestlog import RequestLog
from router.plugins.builtin import builtin_registry
from router.ports import Clock
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.epc import EpcResult, load_epc
from router.scheduling.profile import PluginFailed
from router.scheduling.registry import Registry
from router.scheduling.scheduler import Scheduler
from router.settings import Settings
from router.tokenization.loader import load_tokenizer
from router.tokenization.registry import Tokenizers
from router.tokenization.remote import RemoteTokenizer
from router.tokenization.service import ServiceLimits, TokenizationService
from router.upstream.control import ControlClient

_TOKENIZE_S = 1.0


def scheduler(settings: Settings, failed: PluginFailed) -> Scheduler:
    """Raises `ConfigError`."""
    registry = builtin_registry()
    picker = _picker_config(settings, registry)
    chosen: SchedulingSettings = settings.scheduling if picker is None else picker.settings
    if settings.pd.enabled is False:
        chosen = chosen.model_copy(update={"decider": "never-disagg-pd-decider"})
    return build_scheduler(chosen, registry, failed)


def _picker_config(settings: Settings, registry: Registry) -> EpcResult | None:
    path = settings.scheduling.endpoint_picker_config
    if path is None:
        return None
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"scheduling.endpoint_picker_config: {path} cannot be read ({error.strerror}): name a YAML file"
        ) from error
    return load_epc(text, registry)


def tokenization(
    settings: Settings, client: ControlClient, block_size: Callable[[], int], clock: Clock
) -> TokenizationService:
    """`block_size`: tokens per block of the index's keys."""
    chosen = settings.tokenization
    remote = RemoteTokenizer(EngineTokenize(client, _TOKENIZE_S), clock=clock) if chosen.remote else None
    return TokenizationService(
        Tokenizers(
            load_tokenizer,
            lambda root: load_tokenizer(root, offline=True),
            named=chosen.models,
            default=chosen.default,
        ),
        remote,
        limits=ServiceLimits(inline_max_bytes=chosen.inline_max_bytes, workers=chosen.workers, queue=chosen.queue),
        block_size_for=lambda _model, _candidates: block_size(),
        estimates=chosen.estimate,
    )


def indexing_settings(settings: Settings) -> IndexingSettings:
    """What an EndpointPickerConfig says of the index counts where the settings leave it open. Raises `ConfigError`."""
    index = settings.index
    picker = _picker_config(settings, builtin_registry())
    block_size = None if index.block_size == "auto" else index.block_size
    speculative_ttl_s = index.speculative_ttl_s
    if picker is not None:
        block_size = block_size or picker.hints.block_size
        if "speculative_ttl_s" not in index.model_fields_set:
            speculative_ttl_s = picker.hints.speculative_ttl_s or speculative_ttl_s
    return IndexingSettings(block_size=block_size, speculative_ttl_s=speculative_ttl_s)


def memory_index(settings: Settings, clock: Clock) -> MemoryIndex:
    index = settings.index
    return MemoryIndex(clock, max_blocks=index.max_blocks, history_ttl_s=index.approximate_ttl_s)


def request_log(settings: Settings) -> RequestLog | None:
    """The log of requests to be replayed, if one is asked for; not opened yet."""
    path = settings.log.requests
    return None if path is None else RequestLog(Path(path), wall=time.time, alone=settings.server.workers == 1)
