"""What ``kvrouter explain`` does: asks a router what it would decide for a body, and shows the answer as a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from router.errors import ConfigError
from router.scheduling.explanation import Explanation

_TERMS = ("pending", "own", "reuse", "steps", "delay", "interference", "answer", "memory", "eviction", "slo")
"""Those of `router.scheduling.cost.Terms` that add up to the cost."""

KEY_VARIABLE = "KVROUTER_API_KEY"


def ask(url: str, body: bytes, path: str | None, timeout_s: float = 30.0) -> Explanation:
    """Raises `ConfigError` for a router that cannot be reached or refuses."""
    key = os.environ.get(KEY_VARIABLE)
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        answer = httpx.post(
            f"{url.rstrip('/')}/debug/explain",
            content=body,
            headers=headers,
            params={"path": path} if path else {},
            timeout=timeout_s,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url} cannot be asked ({type(error).__name__}): give a running router's address") from None
    if answer.status_code == 401:
        raise ConfigError(f"{url} wants a key, an admin key if it has some: set {KEY_VARIABLE}")
    try:
        if answer.status_code != 200:
            raise ConfigError(f"{url} answered {answer.status_code}: {_message(answer.content)}")
        return msgspec.json.decode(answer.content, type=Explanation)
    except msgspec.DecodeError:
        raise ConfigError(f"{url} does not answer like a kvrouter: give a running router's address") from None


def _message(content: bytes) -> str:
    said: Any = msgspec.json.decode(content)
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def show(explanation: Explanation, console: Console) -> None:
    head = f"{explanation.reason}: decode on {explanation.decode[0]}"
    if explanation.prefill:
        head += f", prefill on {explanation.prefill[0]}"
    head += f"; {explanation.prompt_tokens} prompt tokens ({explanation.token_source}), {explanation.blocks} blocks"
    table = Table(title="cost in seconds, cheapest first", title_justify="left", box=None, pad_edge=False)
    for name in ("endpoint", "role", "for", "matched", "in flight", "known", "TTFT", "cost", *_TERMS):
        table.add_column(name, justify="left" if name in ("endpoint", "role", "for") else "right", no_wrap=True)
    for row in explanation.candidates:
        known = "-" if row.prefill_confidence is None else f"{row.prefill_confidence:.2f}"
        cells: Sequence[str] = [f"{row.terms.get(name, 0.0):.3f}" for name in ("total", *_TERMS)]
        table.add_row(
            row.endpoint,
            row.role,
            row.chosen_for,
            str(row.matched_tokens),
            str(row.requests),
            known,
            f"{row.predicted_ttft_s:.3f}",
            *cells,
        )
    console.print(Group(Text(head), table))
