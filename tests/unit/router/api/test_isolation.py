from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.api.isolation import TenantSalt

NAMES = st.text(max_size=8)
ASKED = st.tuples(NAMES, st.none() | NAMES)


@given(ASKED, ASKED)
def test_requests_share_a_salt_exactly_where_tenant_and_own_salt_are_the_same(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    salt = TenantSalt("a secret of the routers")
    assert (salt(*one) == salt(*other)) is (one == other)


@given(ASKED)
def test_nobody_makes_a_salt_without_the_secret(asked: tuple[str, str | None]) -> None:
    assert TenantSalt("one secret")(*asked) != TenantSalt("another secret")(*asked)
    assert TenantSalt("one secret")(*asked).isascii()
