"""Answers recorded from vLLM 0.32, as tests compare with them: status, headers, JSON bodies, server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "fixtures" / "vllm"


class Recording(NamedTuple):
    """One recorded answer."""

    status: int
    headers: dict[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        return list(events(self.body))


def recording(name: str) -> Recording:
    """The answer in ``http/<name>.http`` or ``sse/<name>.http``."""
    path = next(p for p in (FOLDER / "http" / f"{name}.http", FOLDER / "sse" / f"{name}.http") if p.exists())
    head, _, body = path.read_bytes().decode().replace("\r\n", "\n").partition("\n\n")
    first, *lines = head.split("\n")
    fields = dict(line.split(": ", 1) for line in lines if ": " in line)
    return Recording(int(first.split()[1]), fields, body)


def events(text: str) -> Iterator[Any]:
    """The ``data`` of each event: parsed JSON, or the text where it is none."""
    for block in text.split("\n\n"):
        for line in block.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                yield json.loads(data) if data.startswith("{") else data


def shape(value: Any) -> Any:
    """A value's skeleton: names in order and kinds, without contents. Lists are as their first member."""
    if isinstance(value, dict):
        return {name: shape(member) for name, member in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, (int, float)) else "text"


def in_order(value: Any) -> Any:
    """`shape` that compares the order of names too."""
    skeleton = shape(value)
    return json.dumps(skeleton)
