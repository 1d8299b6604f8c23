from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.core import Candidate
from router.plugins.scorers.session_affinity import SessionAffinityScorer
from tests.support.scheduling import candidate, context, request

POOL = [candidate(f"10.0.0.{i}:8000") for i in range(8)]


def owner(session: str, pool: Sequence[Candidate] = POOL, header: str = "x-session-id") -> str:
    scores = SessionAffinityScorer().score(context(request_=request(routing_headers={header: session})), pool)
    assert sorted(scores)[-2:] == [0.0, 1.0]
    return pool[scores.index(1.0)].id


def test_without_a_session_nobody_is_preferred() -> None:
    assert SessionAffinityScorer().score(context(), POOL) == [0.0] * 8
    assert (
        SessionAffinityScorer().score(context(request_=request(routing_headers={"x-session-id": ""})), POOL)
        == [0.0] * 8
    )


def test_ids_that_share_a_beginning_are_different_sessions() -> None:
    assert len({owner(f"session-{i}") for i in range(100)}) == len(POOL)


@given(st.text(min_size=1, max_size=40), st.integers(0, 7))
def test_only_the_sessions_of_an_endpoint_that_leaves_move(session: str, gone: int) -> None:
    before = owner(session)
    after = owner(session, [c for i, c in enumerate(POOL) if i != gone])
    assert after == before or before == POOL[gone].id


@given(st.text(min_size=1, max_size=40), st.permutations(POOL))
def test_the_order_of_candidates_does_not_matter(session: str, pool: list[Candidate]) -> None:
    assert owner(session, pool) == owner(session)


def test_a_named_header_is_the_only_one_read() -> None:
    asked = request(routing_headers={"x-session-id": "one", "x-team": "two"})
    scores = SessionAffinityScorer(header_name="X-Team").score(context(request_=asked), POOL)
    assert POOL[scores.index(1.0)].id == owner("two")
    assert SessionAffinityScorer(header_name="x-none").score(context(request_=asked), POOL) == [0.0] * 8
