"""One shared endpoint as a router sees it: what feeds it here, and where the shared truth is."""

from __future__ import annotations

from kvindex.index import Mode
from kvindex.ingest import Ingest
from kvindex.journal import At, Journal


class SharedEndpoint:
    """One endpoint: what is known here, and where the shared truth is."""

    def __init__(self, limit: int) -> None:
        self.journal = Journal(limit)
        self.source: Ingest | None = None
        """What follows the engine's events in this process; None: nothing, or a caller who stores by itself."""
        self.stored_here = False
        """A caller stores by itself: keys stand for themselves, and places are counted."""
        self.place = 0
        self.mode = Mode.APPROXIMATE
        """As this process's own events make it."""
        self.mode_since = 0.0
        self.at: At | None = None
        """Where the stored truth is, while this router owns it and knows."""
        self.raw_at = b""
        self.token = ""
        self.following = False
        self.position = b""
        self.owner_seen = 0.0

    @property
    def fed(self) -> bool:
        return self.stored_here or (self.source is not None and self.mode is Mode.EXACT)
