"""What ``kvrouter explain`` does: asks a router what it would decide for a body, and shows the answer as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from router.calls import Fields, call
from router.core import Comparison
from router.errors import ConfigError
from router.scheduling.explanation import Explanation

_TERMS = ("pending", "own", "reuse", "steps", "delay", "interference", "answer", "memory", "eviction", "slo")
"""Those of `router.scheduling.cost.Terms` that add up to the cost."""


def ask(address: str, body: bytes, path: str | None, fields: Fields = ()) -> Explanation:
    """`path`: where the body would be sent; None: as its fields tell. Raises `ConfigError`."""
    headers = [*fields]
    if not any(name == b"content-type" for name, _ in fields):
        headers.append((b"content-type", b"application/json"))
    answer = call("POST", address, "/debug/explain", body=body, fields=headers, params={"path": path} if path else None)
    try:
        if answer.status_code != 200:
            raise ConfigError(f"{address} answered {answer.status_code}: {_message(answer.content)}")
        return msgspec.json.decode(answer.content, type=Explanation)
    except msgspec.DecodeError:
        raise ConfigError(f"{address} does not answer like a kvrouter: give a running router's address") from None


def _message(content: bytes) -> str:
    said: Any = msgspec.json.decode(content)
    error = said.get("error") if isinstance(said, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""


def show(explanation: Explanation, console: Console, fields: Fields = ()) -> None:
    """`fields`: those that were asked with, to say which of them count for nothing."""
    head = f"{explanation.reason}: decode on {explanation.decode[0]}"
    if explanation.prefill:
        head += f", prefill on {explanation.prefill[0]}"
    if explanation.predicted_ttft_s is not None:
        head += f", first token in {explanation.predicted_ttft_s:.3f} s"
    head += f"; {explanation.prompt_tokens} prompt tokens ({explanation.token_source}), {explanation.blocks} blocks"
    parts: list[Text | Table] = [Text(head)]
    parts += [Text(line) for line in _objectives(explanation, fields)]
    if explanation.compared is not None:
        parts.append(_compared(explanation.compared, explanation.weighed))
    console.print(Group(*parts, _candidates(explanation)))


def _objectives(explanation: Explanation, fields: Fields) -> Sequence[str]:
    lines = []
    for what, counted in (("ttft", explanation.slo_ttft_s), ("tpot", explanation.slo_tpot_s)):
        sent = [name.decode("ascii") for name, _ in fields if name.endswith(f"slo-{what}-ms".encode())]
        if counted is not None:
            lines.append(f"objective: {what} of {counted * 1000:g} ms")
        elif sent:
            lines.append(
                f"{sent[0]} counts for nothing: it is no positive number, or server.trusted_headers does not name it"
            )
    return lines


def _compared(found: Comparison, weighed: bool) -> Table:
    title = "both ways, in seconds"
    if not weighed:
        title += ": what cost-pd-decider would weigh; the decider that chose does not"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("way", "prefill", "decode", "cost", "TTFT"):
        table.add_column(name, justify="right" if name in ("cost", "TTFT") else "left", no_wrap=True)
    cost = found.prefill_cost + found.decode_cost
    told = f"{found.prefill_cost:.3f} + {found.decode_cost:.3f} = {cost:.3f}"
    table.add_row("apart", found.prefill, found.decode, told, f"{found.apart_ttft_s:.3f}")
    table.add_row("on one", found.whole, found.whole, f"{found.whole_cost:.3f}", f"{found.whole_ttft_s:.3f}")
    return table


def _candidates(explanation: Explanation) -> Table:
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
    return table
