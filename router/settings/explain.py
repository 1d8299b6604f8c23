"""A validation error as one sentence: the key, where it stands, what is wrong and how to mend it. PURE.

Values are shown only where they cannot be a secret: numbers, truth values, and words offered for a fixed choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.settings.expected import expected
from router.settings.model import Settings
from router.settings.sources import KeyPath, Source

_SHOWN = frozenset(
    {"bool_type", "int_type", "float_type", "bool_parsing", "int_parsing", "float_parsing", "literal_error", "enum"}
)


def sentence(error: ValidationError, merged: Mapping[str, Any], sources: Sequence[Source]) -> str:
    """The first mistake of `error`. `merged` is what was validated, `sources` its layers, lowest first."""
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_path.setdefault(_key_path(details, merged), []).append(details)
    # A key that is not known first: a misspelt one is why another is missing.
    unknown = next((path for path, found in by_path.items() if found[0]["type"] == "extra_forbidden"), None)
    path = unknown if unknown is not None else next(iter(by_path))
    found = by_path[path]
    return f"{named(path, sources)} {_problem(path, found)}"


def unknown(path: KeyPath, sources: Sequence[Source]) -> str:
    """Of a key that is none."""
    return f"{named(path, sources)} is not a setting: {_known(path)}"


def named(path: KeyPath, sources: Sequence[Source]) -> str:
    """The key, and where it stands."""
    place = next((source.place(path) for source in reversed(sources) if _holds(source.values, path)), None)
    where = f" ({place})" if place else ""
    return f"{dotted(path) or 'the configuration'}{where}"


def dotted(path: KeyPath) -> str:
    """``endpoints[0].url``."""
    text = ""
    for key in path:
        if isinstance(key, str) and not key.isprintable():
            key = ascii(key)[1:-1]
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def _key_path(details: ErrorDetails, merged: Mapping[str, Any]) -> KeyPath:
    """The error's location without what pydantic puts in for members of a union."""
    path: list[str | int] = []
    here: Any = merged
    for key in details["loc"]:
        if isinstance(here, Mapping) and key in here:
            here = here[str(key)]
        elif isinstance(here, (list, tuple)) and isinstance(key, int) and key < len(here):
            here = here[key]
        elif details["type"] != "missing" or key != details["loc"][-1]:
            continue
        path.append(key)
    return tuple(path)


def _holds(values: Any, path: KeyPath) -> bool:
    """Whether this source gave the key; of a missing key, its parent."""
    here = values
    for depth, key in enumerate(path):
        if isinstance(here, Mapping) and key in here:
            here = here[str(key)]
        elif isinstance(here, (list, tuple)) and isinstance(key, int) and key < len(here):
            here = here[key]
        else:
            return depth == len(path) - 1 and depth > 0 and not isinstance(here, (str, int, float))
    return bool(path)


def _problem(path: KeyPath, found: Sequence[ErrorDetails]) -> str:
    first = found[0]
    match first["type"]:
        case "extra_forbidden":
            return f"is not a setting: {_known(path)}"
        case "missing":
            return f"is missing: {_meaning(path)}"
        case "value_error":
            return str(first["ctx"]["error"])
    wanted = " or ".join(dict.fromkeys(expected(details) for details in found))
    shown = f", not {first['input']!r}" if _is_shown(first) else ""
    return f"must be {wanted}{shown}"


def _is_shown(details: ErrorDetails) -> bool:
    value = details["input"]
    if details["type"] == "string_type":
        return False
    if isinstance(value, (bool, int, float)):
        return True
    return isinstance(value, str) and len(value) <= 40 and details["type"] in _SHOWN


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    """The section a path leads to, or None where the tree is free-form."""
    model: type[BaseModel] | None = Settings
    for key in path:
        if model is None or isinstance(key, int):
            continue
        field = model.model_fields.get(key)
        model = _section(field.annotation) if field else None
    return model


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part))), None)


def _known(path: KeyPath) -> str:
    model, name = _model_at(path[:-1]), str(path[-1])
    if model is None:
        return "take it out"
    keys = list(model.model_fields)
    section, dot, rest = name.partition(".")
    if dot and section in keys:
        return f"write {rest} below {dotted((*path[:-1], section))}, as a mapping"
    near = get_close_matches(name, keys, n=1)
    if near:
        return f"did you mean {dotted((*path[:-1], near[0]))}?"
    elsewhere = [
        f"{section}.{name}"
        for section in Settings.model_fields
        if (branch := _model_at((section,))) and name in branch.model_fields
    ]
    if elsewhere and len(path) == 1:
        return f"did you mean {elsewhere[0]}?"
    return f"take it out, or use one of {', '.join(keys)}"


def _meaning(path: KeyPath) -> str:
    model = _model_at(path[:-1])
    field = model.model_fields.get(str(path[-1])) if model else None
    text = (field.description or "").strip().rstrip(".") if field else ""
    return text[:1].lower() + text[1:] if text else "add it"
