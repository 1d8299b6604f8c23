"""KeyRing: who may use the router. Keys are kept and compared as digests only. PURE."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from router.errors import Unauthorized


class KeyRing:
    """No keys: everybody may. Replaced whole on reload."""

    __slots__ = ("_digests",)

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def authorize(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Raises `Unauthorized` unless ``Authorization: Bearer KEY`` or ``x-api-key: KEY`` is one of ours."""
        if not self._digests:
            return
        presented = None
        for name, value in headers:
            if name == b"authorization":
                scheme, _, credential = value.partition(b" ")
                if scheme.lower() == b"bearer":
                    presented = credential.strip()
            elif name == b"x-api-key" and presented is None:
                presented = value.strip()
        if presented is None:
            raise Unauthorized("No API key was given; send it as 'Authorization: Bearer KEY'.")
        digest = hashlib.sha256(presented).digest()
        # Every key is compared, so that the time taken tells nothing about which one came close.
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise Unauthorized("The API key is not one that this router knows.")
