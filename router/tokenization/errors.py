"""What tokenization says to itself when a prompt's tokens cannot be told locally. PURE."""

from __future__ import annotations


class NotRenderable(Exception):
    """This prompt's tokens cannot be told here: the engine, or an estimate, must. The message holds no prompt text."""
