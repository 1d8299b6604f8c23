"""SchedulingSettings: the ``scheduling`` key of the configuration. PURE.

    scheduling:
      plugins:                                   # only those that need parameters or a name of their own
        - {name: short-queue, type: utilization-filter, parameters: {maxWaitingQueue: 16}}
      profiles:
        decode:
          filters: [short-queue]
          scorers: [{plugin: prefix-cache-scorer, weight: 3}, {plugin: active-request-scorer, weight: 2}]
          picker: max-score-picker
      decider: prefix-based-pd-decider

A name that ``plugins`` does not define is taken as a plugin type with its default parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict

_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class PluginSettings(BaseModel):
    """One plugin instance."""

    model_config = _FROZEN

    type: str
    """Plugin type, as `docs/plugins.md` lists them."""
    name: str | None = None
    """What profiles call it; the type when omitted."""
    parameters: Mapping[str, Any] = {}
    """What the type takes; unknown ones are refused."""

    @property
    def key(self) -> str:
        return self.name or self.type


class ScorerSettings(BaseModel):
    """A scorer's share in a profile."""

    model_config = _FROZEN

    plugin: str
    """Name or type of a scorer."""
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Share in the sum; scores lie in 0..1."""


class ProfileSettings(BaseModel):
    """Filters in order, then the weighted sum of scores, then the picker."""

    model_config = _FROZEN

    filters: Annotated[tuple[str, ...], Strict(False)] = ()
    """Names or types of filters, applied in this order."""
    scorers: Annotated[tuple[ScorerSettings, ...], Strict(False)] = ()
    """Scorers and their weights; `[]` for none."""
    picker: str = "max-score-picker"
    """Name or type of the picker."""


_DEFAULT = ProfileSettings(scorers=(ScorerSettings(plugin="predicted-latency-scorer"),))
"""Both legs: the least predicted cost, with what each engine can do learnt while it serves (docs/scheduling.md)."""


def _with_scorers(given: Any) -> Any:
    """A profile that sets a filter or a picker alone is not meant to choose without scores."""
    return {"scorers": _DEFAULT.scorers, **given} if isinstance(given, Mapping) else given


_Profile = Annotated[ProfileSettings, BeforeValidator(_with_scorers)]


class ProfilesSettings(BaseModel):
    """Who serves a request, and who prefills it when the decider wants that done elsewhere."""

    model_config = _FROZEN

    decode: _Profile = _DEFAULT
    """Who serves the request (decode leg, or the whole of it)."""
    prefill: _Profile = _DEFAULT
    """Who prefills it, when that is done elsewhere."""


_DECIDER = "cost-pd-decider"


class SchedulingSettings(BaseModel):
    """How endpoints are chosen."""

    model_config = _FROZEN

    plugins: Annotated[tuple[PluginSettings, ...], Strict(False)] = ()
    """Plugins with parameters or a name of their own. Replaces the default list as a whole."""
    profiles: ProfilesSettings = ProfilesSettings()
    """Which plugins choose for each leg."""
    decider: str = _DECIDER
    """Whether a prompt is prefilled elsewhere. Asked only where there is an endpoint to do it."""
