"""Which tokenizer a model has, loaded once and off the event loop.

Named ones are loaded at the start and must load. A model that nobody named gets its own if that costs no download: its
``root`` is a folder on this machine, or a hub id in the hub's local cache. Until it is there the model has none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from router.errors import ConfigError
from router.tokenization.identity import ModelIdentity
from router.tokenization.local import LocalTokenizer

log = logging.getLogger(__name__)

_MOST_FOUND = 64


class Tokenizers:
    """Tokenizers by what names them. `start` first, `aclose` last."""

    def __init__(
        self,
        load: Callable[[str], LocalTokenizer],
        find: Callable[[str], LocalTokenizer] | None,
        *,
        named: Mapping[str, str] | None = None,
        default: str | None = None,
    ) -> None:
        """`load` a named source; `find` a model's root without a download, None: do not look. Both may block and raise
        `ConfigError`. `named`: served model name or root -> source. `default`: source for all others."""
        self._load = load
        self._find = find
        self._named = dict(named or {})
        self._default = default
        self._loaded: dict[str, LocalTokenizer | None] = {}
        self._finding: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Loads what is named. Raises `ConfigError`."""
        for source in dict.fromkeys([*self._named.values(), *([self._default] if self._default else [])]):
            self._loaded[source] = await asyncio.to_thread(self._load, source)

    async def aclose(self) -> None:
        tasks = list(self._finding.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._finding.clear()

    def get(self, model: str | None, identity: ModelIdentity) -> LocalTokenizer | None:
        """The model's tokenizer if it is loaded; begins to look for it otherwise. Call it on the event loop."""
        for name in (model, identity.served, identity.root):
            if name is not None and (source := self._named.get(name)) is not None:
                return self._loaded.get(source)
        if self._default is not None:
            return self._loaded.get(self._default)
        root = identity.root
        if root in self._loaded:
            return self._loaded[root]
        if self._find is not None and root and root not in self._finding and len(self._finding) < _MOST_FOUND:
            self._finding[root] = asyncio.create_task(self._look(root, self._find), name=f"tokenizer {root}")
        return None

    async def settled(self) -> None:
        """Returns when every search under way has ended."""
        await asyncio.gather(*self._finding.values(), return_exceptions=True)

    async def _look(self, root: str, find: Callable[[str], LocalTokenizer]) -> None:
        try:
            self._loaded[root] = await asyncio.to_thread(find, root)
            log.info("model %s: its own tokenizer is used", root)
        except ConfigError as error:
            self._loaded[root] = None
            log.info("model %s: no tokenizer of its own here (%s)", root, error)
