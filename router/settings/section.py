"""Section: what every branch of the settings tree has in common. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """Frozen; unknown keys are refused, and refusals do not quote what was given.

    Strict: a truth value is no number, text is neither, 8000.0 is no whole number. Only the environment is text, and
    `router.settings.environment` reads it as the key asks.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _frozen_lists(cls, given: Any) -> Any:
        """Lists are written where the tree keeps tuples, and strict validation takes neither for the other."""
        if not isinstance(given, Mapping):
            return given
        return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
