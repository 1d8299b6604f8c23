"""Accounts: what each tenant of a class may still be served before others have their turn. PURE.

Deficit round robin over tokens. What a request will cost is not known when it is dispatched, so its tenant is charged
what is expected and the charge is corrected as the truth comes; an account may therefore be overdrawn, and then waits
for more rounds.
"""

from __future__ import annotations


class Account:
    """One tenant's in one class. `deficit` and `served` in tokens."""

    __slots__ = ("deficit", "opened_at", "served", "tenant", "weight")

    def __init__(self, tenant: str, weight: float, opened_at: float) -> None:
        self.opened_at = opened_at
        self.tenant = tenant
        self.weight = weight
        self.deficit = 0.0
        """What it may be served now; negative: what it was served beyond its turn."""
        self.served = 0.0
        """Charged here since the account was opened, for other routers to know."""

    def charge(self, tokens: float) -> Charge:
        self.deficit -= tokens
        self.served += tokens
        return Charge(self, tokens)


class Charge:
    """What one request has cost its tenant so far."""

    __slots__ = ("_account", "_tokens")

    def __init__(self, account: Account, tokens: float) -> None:
        self._account = account
        self._tokens = tokens

    @property
    def tokens(self) -> float:
        return self._tokens

    def correct(self, tokens: float) -> None:
        """It is known to be so much. May be called again and again."""
        more = tokens - self._tokens
        self._account.deficit -= more
        self._account.served += more
        self._tokens = tokens
