"""KeyRing: who may use the router, and with which rights. Keys are kept and compared as digests only. PURE.

A presented key is looked up by a digest keyed with a random secret of this ring: what the look-up's time could tell is
about values that nobody outside can compute, so it tells nothing about how close a guess came, and it does not grow
with the number of keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

import msgspec

from router.errors import Unauthorized


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What one API key is called and what it may ask for."""

    digest: bytes
    """SHA-256 of the key."""
    name: str = ""
    tenant: str = ""
    objectives: tuple[str, ...] = ()
    """Objectives it may name; the first is its default."""
    max_priority: int | None = None
    """Highest importance it may ask for (higher is more important)."""
    trusted: bool = False
    """It may set tenant, objective, SLOs and priority of each request."""


NOBODY = Key(digest=b"")
"""Whoever comes without a key to a router that asks for none."""


class KeyRing:
    """No keys: everybody may. Replaced whole on reload."""

    __slots__ = ("_keys", "_secret")

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = {self._blinded(key.digest): key for key in keys}

    @property
    def open(self) -> bool:
        return not self._keys

    def authorize(self, headers: Iterable[tuple[bytes, bytes]]) -> Key:
        """The key of ``Authorization: Bearer KEY`` or ``x-api-key: KEY``. Raises `Unauthorized` for none of ours."""
        if not self._keys:
            return NOBODY
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
        key = self._keys.get(self._blinded(digest))
        if key is None or not hmac.compare_digest(digest, key.digest):
            raise Unauthorized("The API key is not one that this router knows.")
        return key

    def _blinded(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, digest_size=32, key=self._secret).digest()
