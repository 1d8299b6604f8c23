"""Logging set-up: one handler on standard error, as text or one JSON object a line."""

from __future__ import annotations

import logging
import sys

import msgspec

_UNFINISHED = "ASGI callable returned without completing response."


class _JsonFormatter(logging.Formatter):
    def __init__(self, who: str | None) -> None:
        super().__init__()
        self._who = {} if who is None else {"process": who}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            **self._who,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def _expected(record: logging.LogRecord) -> bool:
    """An exchange that is left unfinished on purpose is how a client sees a cut; uvicorn calls it an error."""
    return _UNFINISHED not in record.getMessage()


def configure(level: str, form: str, who: str | None = None) -> None:
    """`level`: debug | info | warning | error; `form`: text | json. Replaces what was configured before.

    `who`: this process's name in each line, where several write to one log.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_expected)
    if form == "json":
        handler.setFormatter(_JsonFormatter(who))
    else:
        named = "" if who is None else f"{who.replace('%', '%%')} "
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {named}%(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "uvicorn.access", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
