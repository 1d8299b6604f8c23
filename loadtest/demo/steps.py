"""Steps: what the router's planner does, read from ``/debug/plan``, a line for each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import httpx


class Steps:
    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def new(self, client: httpx.Client) -> list[str]:
        """Lines for what changed since the last call."""
        try:
            answer = client.get("/debug/plan")
        except httpx.TransportError:
            return []
        plans: Sequence[Mapping[str, Any]] = answer.json().get("plans", ()) if answer.status_code == 200 else ()
        lines = []
        for plan in plans:
            wanted = _engines(plan["desired"])
            if plan["action"] != "hold" and self._last.get(plan["pool"]) != wanted:
                there = _engines(plan["present"])
                lines.append(f"planner: {there} -> {wanted} ({plan['action']}): {plan['why']}")
                self._last[plan["pool"]] = wanted
        return lines


def _engines(counts: Sequence[Mapping[str, Any]]) -> str:
    return " + ".join(f"{each['count']} {each['role']}" for each in counts) or "none"
