from router.plugins.filters.active_request import ActiveRequestFilter
from tests.support.scheduling import candidate, context, ids

POOL = [candidate("two", inflight=2), candidate("three", inflight=3)]


def test_an_endpoint_passes_with_at_most_so_many() -> None:
    assert ids(ActiveRequestFilter(max_requests=2).filter(context(), POOL)) == ["two"]
    assert ActiveRequestFilter(max_requests=1).filter(context(), POOL) == []
    assert ids(ActiveRequestFilter(max_requests=1, fallback_on_empty=True).filter(context(), POOL)) == ["two", "three"]
