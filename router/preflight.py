"""Preflight: every file that `serve` would open, tried without starting anything.

What `kvrouter check` and `serve --print-config` refuse is what `serve` would refuse, in the same words.
"""

from __future__ import annotations

from pathlib import Path

from router.assembly.clients import key_ring
from router.assembly.routing import scheduler
from router.assembly.shared import redis_link
from router.certificates import Certificates
from router.errors import ConfigError
from router.outputs import trouble
from router.planned import fitting
from router.scheduling.build import ignore_failure
from router.settings import Settings
from router.tokenization.loader import load_tokenizer


def preflight(settings: Settings) -> None:
    """Plugins and their configuration, certificates, what the planner is made of, tokenizers that are files here, the
    request log.

    Nothing is created and nothing asked over a network. Raises `ConfigError` for the first that `serve` could not use.
    """
    scheduler(settings, ignore_failure)
    key_ring(settings)
    Certificates(settings)
    if settings.shares:
        redis_link(settings)
    fitting(settings)
    log = settings.log.requests
    # Not opened: a log that does not exist yet does not begin here.
    if log is not None and (why := trouble(Path(log))):
        raise ConfigError(f"log.requests: {log} cannot be written ({why}): name a file in a folder of yours")
    for source in dict.fromkeys(_tokenizers(settings)):
        if Path(source).expanduser().exists() or source.startswith(("/", ".", "~")):
            load_tokenizer(source, offline=True)


def _tokenizers(settings: Settings) -> list[str]:
    chosen = settings.tokenization
    return [*chosen.models.values(), *([] if chosen.default is None else [chosen.default])]
