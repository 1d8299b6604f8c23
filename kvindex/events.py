"""vLLM KV-event bytes -> BlockStored | BlockRemoved | AllBlocksCleared. PURE."""

from __future__ import annotations

from enum import IntEnum


class Tier(IntEnum):
    """Where an engine holds a block, from near to far. The names in lower case are the metric labels."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2
