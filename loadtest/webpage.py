"""The page /cache of locust's web UI: the run's tokens and hit rate, told anew every two seconds, also as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from loadtest.tally import Tally

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>KV cache</title><meta http-equiv="refresh" content="2">
<style>body{font:16px system-ui,sans-serif;margin:3rem}td{padding:.3rem 1.5rem .3rem 0}td+td{text-align:right}</style>
</head><body><h1>KV cache</h1><table>%s</table><p><a href="./">back to the statistics</a></p></body></html>
"""


def rows(tally: Tally) -> list[tuple[str, str]]:
    """What the page shows, line by line."""
    rate = tally.hit_rate
    return [
        ("Hit rate", "not known yet" if rate is None else f"{100 * rate:.1f} %"),
        ("Prompt tokens", f"{tally.prompt_tokens:,}"),
        ("of them cached", f"{tally.cached_tokens:,}"),
        ("Completion tokens", f"{tally.completion_tokens:,}"),
        ("Requests", f"{tally.requests:,}"),
        ("of them failed", f"{tally.failures:,}"),
        ("Answers that did not tell", f"{tally.unreported:,}"),
    ]


def add_cache_page(web_ui: Any, tally: Callable[[], Tally]) -> None:
    """Adds /cache and /cache.json; `tally` gives the sums of the run that is on."""

    def page() -> str:
        return _PAGE % "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows(tally()))

    def sums() -> tuple[bytes, int, dict[str, str]]:
        body = msgspec.json.encode({**msgspec.structs.asdict(tally()), "hit_rate": tally().hit_rate})
        return body, 200, {"Content-Type": "application/json"}

    web_ui.app.add_url_rule("/cache", "cache", web_ui.auth_required_if_enabled(page))
    web_ui.app.add_url_rule("/cache.json", "cache_json", web_ui.auth_required_if_enabled(sums))
