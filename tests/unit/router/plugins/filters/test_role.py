from router.core import Role
from router.plugins.filters.role import DecodeFilter, PrefillFilter
from tests.support.scheduling import candidate, context, ids

POOL = [candidate(role.value, role=role) for role in Role]


def test_each_filter_keeps_its_role_and_both() -> None:
    assert ids(PrefillFilter().filter(context(), POOL)) == ["prefill", "both"]
    assert ids(DecodeFilter().filter(context(), POOL)) == ["decode", "both"]
