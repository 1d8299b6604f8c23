"""TenantSalt: a ``cache_salt`` of each tenant's own, so that no tenant can find out by an answer's speed what another
has asked: engines share cached prefixes only where salts are equal. PURE.

It is derived with a secret, or a tenant that knows another's name could send the other's salt.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

_BYTES = 18


class TenantSalt:
    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        """`secret`: the same at every router over the same engines, or equal prompts are cached once per router."""
        self._secret = secret.encode()

    def __call__(self, tenant: str, own: str | None) -> str:
        """The salt to send, out of the tenant's name and the salt that the request itself has (None: none)."""
        named = tenant.encode("utf-8", "surrogatepass")
        # The length keeps ("ab", "c") and ("a", "bc") apart, the mark keeps no salt and an empty one apart.
        said = b"-" if own is None else b"+" + own.encode("utf-8", "surrogatepass")
        digest = hmac.digest(self._secret, b"%d:%b%b" % (len(named), named, said), hashlib.sha256)
        return base64.urlsafe_b64encode(digest[:_BYTES]).decode("ascii")
