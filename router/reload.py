"""Reload while running: what changed, what of it may change live, and the watcher that notices.

A new configuration is taken whole or not at all: whatever is wrong with it, the old one stays in force and one
sentence in the log says why.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchfiles import awatch

from router.certificates import certificate_files
from router.errors import ConfigError
from router.settings import Settings, load
from router.settings.live import LIVE, live_keys

logger = logging.getLogger(__name__)

_DEBOUNCE_MS = 200
_COMPARE_MS = 5000
_SAME_S = 1.0
"""Who changes a file and asks for a reload at once means one change: it is loaded, and told of, once."""


@dataclass(frozen=True, slots=True)
class SettingsLoader:
    """Loads the same sources again: the file, this process's environment and the flags of its start."""

    config: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Settings:
        """Raises `ConfigError`."""
        return load(self.config, flags=self.flags)

    def paths(self, settings: Settings) -> tuple[Path, ...]:
        """Files whose change can change the settings."""
        named = (
            self.config,
            settings.server.api_keys_file,
            settings.server.admin_keys_file,
            settings.scheduling.endpoint_picker_config,
        )
        return (*(Path(path) for path in named if path is not None), *certificate_files(settings))


@dataclass(frozen=True, slots=True)
class Change:
    """The keys in which two settings differ, and the settings that can be in force now."""

    live: tuple[str, ...]
    restart: tuple[str, ...]
    settings: Settings
    """The new settings' live keys over the old settings' others."""


def compare(old: Settings, new: Settings, rewritten: Collection[str] = ()) -> Change:
    """What changed from `old` to `new`; `rewritten` are live keys whose files have another content now. PURE."""
    live: list[str] = []
    restart: list[str] = []
    for section in Settings.model_fields:
        before, after = getattr(old, section), getattr(new, section)
        if before == after and section not in rewritten:
            continue
        if section in LIVE:
            live.append(section)
            continue
        for key in type(before).model_fields:
            if getattr(before, key) != getattr(after, key):
                name = f"{section}.{key}"
                (live if name in LIVE else restart).append(name)
    update: dict[str, Any] = {name: getattr(new, name) for name in LIVE if "." not in name}
    for section, keys in live_keys().items():
        before, after = getattr(old, section), getattr(new, section)
        update[section] = before.model_copy(update={key: getattr(after, key) for key in keys})
    return Change(tuple(live), tuple(restart), old.model_copy(update=update))


class ConfigWatcher:
    """Loads again when a watched file's content changes or `request` is called (SIGHUP), and applies what changed.

    Made before the parts that `current` configures: what their files hold from then on is never missed.

    `apply` gets the settings that are to be in force; it does so whole or raises `ConfigError` and changes nothing.
    `renew` takes over the present content of certificate files, or raises `ConfigError` and keeps what it has.
    """

    def __init__(
        self,
        current: Settings,
        loader: SettingsLoader,
        apply: Callable[[Settings], Awaitable[None]],
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        self.current = current
        self._loader = loader
        self._apply = apply
        self._renew = renew
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._digests: dict[Path, bytes] = {}
        """Of the files as they were loaded last, or last tried to be."""
        self._told_at: float | None = None
        """Loop time at which the log last said what came of a load."""
        self._picker = _picker_digest(current)

    def request(self) -> None:
        """Load again soon, changed or not. Safe to call from a signal handler of the loop."""
        self._wanted.set()

    async def run(self) -> None:
        """Until cancelled. First takes over what changed between the load of `current` and now."""
        await self.reload(quietly=True)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if not await self._just_told():
                    await self.reload()

    async def reload(self, *, quietly: bool = False) -> bool:
        """Loads and applies now. False: the old settings stay in force, and the log says why.

        `quietly`: nothing is said where nothing has changed.
        """
        try:
            await self.attempt(quietly=quietly)
        except ConfigError:
            return False
        return True

    async def attempt(self, *, quietly: bool = False) -> Change:
        """Loads and applies now, and tells what changed. Raises `ConfigError`: the old settings stay in force."""
        async with self._one_at_a_time:
            return await self._attempt(quietly)

    async def _just_told(self) -> bool:
        """Whether the files as they are now were tried, and told of, a moment ago."""
        if self._told_at is None or asyncio.get_running_loop().time() - self._told_at > _SAME_S:
            return False
        return await asyncio.to_thread(_digests, self._loader.paths(self.current)) == self._digests

    async def _load(self) -> tuple[Settings, dict[Path, bytes]]:
        """The settings, and digests of all their files from before they were read: no change after that is missed."""
        paths = self._loader.paths(self.current)
        while True:
            digests = self._digests = await asyncio.to_thread(_digests, paths)
            loaded = await asyncio.to_thread(self._loader)
            named = self._loader.paths(loaded)
            if set(named) <= set(paths):
                return loaded, digests
            paths = (*paths, *named)

    async def _attempt(self, quietly: bool) -> Change:
        loop = asyncio.get_running_loop()
        try:
            loaded, digests = await self._load()
            picker = await asyncio.to_thread(_picker_digest, loaded)
            change = compare(self.current, loaded, () if picker == self._picker else ("scheduling",))
            await asyncio.to_thread(self._renew)
            if change.live:
                await self._apply(change.settings)
        except ConfigError as error:
            logger.error("configuration not reloaded, the old one stays in force: %s", error)
            self._told_at = loop.time()
            raise
        self.current, self._picker = change.settings, picker
        kept = self._loader.paths(self.current)
        self._digests = {path: content for path, content in digests.items() if path in kept}
        if quietly and not change.live and not change.restart:
            return change
        self._told_at = loop.time()
        if change.restart:
            logger.warning("changed, but needs a restart to take effect: %s", ", ".join(change.restart))
        logger.info("configuration reloaded: %s", ", ".join(change.live) or "nothing changed that can change live")
        return change

    async def _watch(self) -> None:
        """Watches folders, not files: an editor's rename and a ConfigMap's symlink swap replace the file itself.

        Contents are compared every few seconds too: a change may come before the operating system's watch stands, and
        some file systems tell of none.
        """
        folders = {path.absolute().parent for path in self._loader.paths(self.current)}
        folders = {folder for folder in folders if folder.is_dir()}
        if not folders:
            return
        try:
            changes = awatch(
                *folders,
                watch_filter=None,
                debounce=_DEBOUNCE_MS,
                step=50,
                rust_timeout=_COMPARE_MS,
                yield_on_timeout=True,
                recursive=False,
            )
            async for _ in changes:
                digests = await asyncio.to_thread(_digests, self._loader.paths(self.current))
                if digests != self._digests:
                    self._wanted.set()
        except (OSError, RuntimeError) as error:
            # The operating system's watches are used up, or the folder went away: watchfiles raises either.
            logger.warning("the configuration is not watched (%s): send SIGHUP after a change", error)


def _picker_digest(settings: Settings) -> dict[Path, bytes]:
    """The llm-d configuration is read by whoever builds the scheduler: only its path is in the settings."""
    path = settings.scheduling.endpoint_picker_config
    return {} if path is None else _digests([Path(path)])


def _digests(paths: Sequence[Path]) -> dict[Path, bytes]:
    """Content by file; an unreadable one is absent (halfway through being replaced, or gone)."""
    found: dict[Path, bytes] = {}
    for path in paths:
        try:
            found[path] = hashlib.sha256(path.read_bytes()).digest()
        except OSError:
            continue
    return found
