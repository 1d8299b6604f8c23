from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.core import Endpoint, EndpointState, Role
from router.scheduling.ramp import open_to_more

NOW, RAMP_S = 1000.0, 30.0


def state(name: str, age_s: float | None = None, *, role: Role = Role.BOTH, on_trial: bool = False) -> EndpointState:
    since = None if age_s is None else NOW - age_s
    return EndpointState(endpoint=Endpoint(id=name, url=f"http://{name}", role=role), since=since, on_trial=on_trial)


def free(states: Sequence[EndpointState], requests: Mapping[str, int]) -> str:
    found = open_to_more(states, lambda name: requests.get(name, 0), NOW, RAMP_S)
    return "".join(each.endpoint.id for each in found)


def test_a_newcomer_has_one_request_at_any_time_and_a_growing_share_of_what_its_peers_have() -> None:
    for age_s, most in ((0.0, 3), (15.0, 11), (29.9, 20)):
        states = [state("a"), state("n", age_s)]
        assert free(states, {"a": 20}) == "an"
        assert free(states, {"a": 20, "n": most - 1}) == "an"
        assert free(states, {"a": 20, "n": most + 1}) == "a"
    assert free([state("a"), state("n", 30.0)], {"n": 99}) == "an"


def test_beside_idle_peers_it_has_one_at_a_time() -> None:
    assert free([state("a"), state("n", 1.0)], {}) == "an"
    assert free([state("a"), state("n", 1.0)], {"n": 1}) == "a"


def test_where_everybody_is_new_nobody_is_bounded() -> None:
    assert free([state("a", 1.0), state("n", 2.0)], {"a": 50, "n": 9}) == "an"


def test_peers_are_those_of_the_same_role_or_of_both() -> None:
    states = [state("d", role=Role.DECODE), state("p", 1.0, role=Role.PREFILL)]
    assert free(states, {"p": 5}) == "dp"
    assert free([*states, state("q", role=Role.PREFILL)], {"p": 5}) == "dq"


def test_on_trial_one_at_a_time_unless_nobody_else_can_decode() -> None:
    assert free([state("a"), state("t", on_trial=True)], {}) == "at"
    assert free([state("a"), state("t", on_trial=True)], {"t": 1}) == "a"
    assert free([state("p", role=Role.PREFILL), state("t", on_trial=True)], {"t": 1}) == "pt"


def test_without_a_ramp_only_trials_are_bounded() -> None:
    states = [state("a"), state("n", 0.0)]
    assert open_to_more(states, lambda _: 9, NOW, 0.0) is states


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.floats(0, 60)), st.integers(0, 40), st.booleans()), min_size=1),
)
def test_somebody_is_always_open(drawn: list[tuple[float | None, int, bool]]) -> None:
    states = [state(str(i), age, on_trial=trial) for i, (age, _, trial) in enumerate(drawn)]
    requests = {str(i): count for i, (_, count, _) in enumerate(drawn)}
    assert open_to_more(states, requests.__getitem__, NOW, RAMP_S)
