"""HandOff: a prompt's KV as the prefill leg leaves it for the decode leg. PURE."""

from __future__ import annotations

from typing import NamedTuple

from router.core import Endpoint


class HandOff(NamedTuple):
    params: bytes
    """The engine's ``kv_transfer_params``, raw JSON."""
    holder: Endpoint
    """Where the KV is read from."""
