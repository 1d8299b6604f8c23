"""Logging set-up: one handler on standard error, as text or one JSON object a line."""

from __future__ import annotations

import logging
import sys

import msgspec

_UNFINISHED = "ASGI callable returned without completing response."


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _expected(record: logging.LogRecord) -> bool:
    """An exchange that is left unfinished on purpose is how a client sees a cut; uvicorn calls it an error."""
    return _UNFINISHED not in record.getMessage()


def configure(level: str, form: str) -> None:
    """`level`: debug | info | warning | error; `form`: text | json. Replaces what was configured before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_expected)
    if form == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
