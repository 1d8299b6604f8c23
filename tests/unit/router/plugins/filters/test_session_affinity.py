from router.plugins.filters.session_affinity import SessionAffinityFilter
from router.plugins.scorers.session_affinity import SessionAffinityScorer
from tests.support.scheduling import candidate, context, ids, request

POOL = [candidate(f"10.0.0.{i}:8000") for i in range(5)]


def test_a_session_keeps_one_endpoint_and_it_is_the_one_the_scorer_prefers() -> None:
    asked = context(request_=request(routing_headers={"x-session-token": "s"}))
    kept = SessionAffinityFilter().filter(asked, POOL)
    assert ids(kept) == [POOL[SessionAffinityScorer().score(asked, POOL).index(1.0)].id]


def test_without_a_session_all_pass() -> None:
    assert ids(SessionAffinityFilter().filter(context(), POOL)) == ids(POOL)
