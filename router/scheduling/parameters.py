"""Parameters: the base of built-in plugins, whose fields are the parameters a configuration may set. PURE.

A built-in plugin is a frozen struct: its fields, in camelCase, are exactly the keys of ``parameters`` in the
configuration (llm-d's spelling), their annotations the check, their defaults the defaults. Anything else is refused
with a sentence that names the key and the mend.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Self

import msgspec

from router.errors import ConfigError


class Parameters(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Subclass it, declare fields with defaults, add the one method of the plugin's protocol."""

    @classmethod
    def create(cls, parameters: Mapping[str, Any]) -> Self:
        """The plugin with these parameters. Raises `ConfigError` for an unknown key or a value of the wrong type."""
        known = cls.__struct_encode_fields__
        for key in parameters:
            if key not in known:
                raise ConfigError(f"parameter {key!r} is unknown: {_mend(str(key), known)}")
        try:
            return msgspec.convert(dict(parameters), cls)
        except msgspec.ValidationError as error:
            raise ConfigError(_sentence(str(error))) from None


def _mend(key: str, known: tuple[str, ...]) -> str:
    if not known:
        return "this type takes no parameters, remove it"
    close = get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}It takes {', '.join(known)}"


def _sentence(message: str) -> str:
    """msgspec's ``Expected `float`, got `str` - at `$.threshold``` as a sentence about the parameter."""
    what, _, where = message.partition(" - at `$.")
    key = where.rstrip("`")
    return f"parameter {key!r} has a wrong value: {what}" if key else what
