"""Reading decoded JSON whose shape is the client's choice. PURE."""

from __future__ import annotations

from typing import Any


class UnknownShape(Exception):
    """A value is not of the shape that was asked for. Ends a conversion, is no fault."""


def text_of(value: Any) -> str:
    if type(value) is not str:
        raise UnknownShape
    return value


def list_of(value: Any) -> list[Any]:
    if type(value) is not list:
        raise UnknownShape
    return value


def object_of(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise UnknownShape
    return value
