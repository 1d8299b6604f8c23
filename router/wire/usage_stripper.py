"""Takes the usage event that only the router asked for out of a stream again. PURE.

With ``stream_options.include_usage`` an OpenAI-style stream gains one event, after the last choice and before
``[DONE]``: empty ``choices`` and a ``usage``. Every other byte passes through unchanged.
"""

from __future__ import annotations

import msgspec

_HELD_BYTES = 16 * 1024


class UsageStripper:
    """Feed every chunk, forward what comes back, forward `end()` last.

    An unfinished line is held until its end has come, at most 16 KiB of it, or until it cannot be the usage event any
    more. No whole line waits for another.
    """

    __slots__ = ("_drop_blank", "_held", "_passing")

    def __init__(self) -> None:
        self._held = b""
        self._passing = False
        self._drop_blank = False

    def feed(self, chunk: bytes) -> bytes:
        if self._held or self._passing or self._drop_blank or not chunk.endswith(b"\n"):
            return self._whole_lines(chunk)
        return self._strip(chunk) if b'"usage"' in chunk else chunk

    def end(self) -> bytes:
        """What was held when the stream ended, or broke, in the middle of a line."""
        rest, self._held = self._held, b""
        return b"" if rest and _is_usage_event(rest) else rest

    def _whole_lines(self, chunk: bytes) -> bytes:
        before = b""
        if self._passing:
            cut = chunk.find(b"\n") + 1
            if not cut:
                return chunk
            self._passing = False
            before, chunk = chunk[:cut], chunk[cut:]
        data = self._held + chunk
        cut = data.rfind(b"\n") + 1
        lines, rest = data[:cut], data[cut:]
        if self._drop_blank or b'"usage"' in lines:
            lines = self._strip(lines)
        if len(rest) > _HELD_BYTES:
            self._passing = True
            lines, rest = lines + rest, b""
        self._held = rest
        return before + lines

    def _strip(self, lines: bytes) -> bytes:
        kept = []
        for line in lines.splitlines(keepends=True):
            if self._drop_blank:
                # The empty line that ended the event goes with it.
                self._drop_blank = False
                if line in (b"\n", b"\r\n"):
                    continue
            if _is_usage_event(line):
                self._drop_blank = True
            else:
                kept.append(line)
        return b"".join(kept)


def _is_usage_event(line: bytes) -> bool:
    if not line.startswith(b"data:") or b'"usage"' not in line:
        return False
    try:
        event = msgspec.json.decode(line[5:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(event, dict) and event.get("choices") == [] and isinstance(event.get("usage"), dict)
