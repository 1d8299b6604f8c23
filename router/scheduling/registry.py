"""Registry: plugin type -> factory, built-in ones given by the caller, third-party ones by entry point. PURE.

A package offers a plugin type by an entry point in the group ``kvrouter.plugins``: its name is the type, its value a
factory ``def factory(parameters: Mapping[str, Any]) -> plugin``. It is imported when a configuration first names it.
See ``docs/plugins.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from router.errors import ConfigError

GROUP = "kvrouter.plugins"

Factory = Callable[[Mapping[str, Any]], object]


class Registry:
    """Built-in types first; an installed package may not take the name of one."""

    def __init__(self, builtin: Mapping[str, Factory], installed: Iterable[EntryPoint] | None = None) -> None:
        """`installed`: the entry points of the group; None looks them up in the environment (names only, no import)."""
        self._builtin = dict(builtin)
        self._installed: dict[str, EntryPoint] = {}
        for point in entry_points(group=GROUP) if installed is None else installed:
            if point.name in self._builtin:
                raise ConfigError(
                    f"entry point {point.value!r} declares plugin type {point.name!r}, which is built in: "
                    "rename it in the package that declares it, or uninstall that package"
                )
            other = self._installed.get(point.name)
            if other is not None and other.value != point.value:
                raise ConfigError(
                    f"plugin type {point.name!r} is declared by both {other.value!r} and {point.value!r}: "
                    "uninstall one of the two packages"
                )
            self._installed[point.name] = point

    def types(self) -> list[str]:
        return sorted({*self._builtin, *self._installed})

    def create(self, type_: str, name: str, parameters: Mapping[str, Any]) -> object:
        """A plugin instance. Raises `ConfigError` naming plugin, key and mend."""
        factory = self._builtin.get(type_) or self._load(type_, name)
        try:
            return factory(parameters)
        except ConfigError as error:
            raise ConfigError(f"plugin {name!r} of type {type_!r}: {error}") from error
        except Exception as error:
            raise ConfigError(
                f"plugin {name!r} of type {type_!r} refused its parameters ({type(error).__name__}: {error}): "
                "mend them as its package documents"
            ) from error

    def _load(self, type_: str, name: str) -> Factory:
        point = self._installed.get(type_)
        if point is None:
            close = get_close_matches(type_, self.types(), n=3)
            mend = f"did you mean {' or '.join(close)}? If not," if close else "mend the type, or"
            raise ConfigError(
                f"plugin {name!r}: there is no plugin type {type_!r}: {mend} install the package that brings it "
                f"(by an entry point in the group {GROUP!r})"
            )
        try:
            factory = point.load()
        except Exception as error:
            raise ConfigError(
                f"plugin {name!r}: type {type_!r} could not be imported from {point.value!r} "
                f"({type(error).__name__}: {error}): mend or uninstall the package that declares it"
            ) from error
        if not callable(factory):
            raise ConfigError(
                f"plugin {name!r}: entry point {point.value!r} of type {type_!r} is not callable: "
                "it must name a factory that takes the parameters and returns the plugin"
            )
        return factory  # type: ignore[no-any-return]
