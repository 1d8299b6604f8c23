from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.workers.silence import LOOK_S, Silence


def test_it_grows_from_look_to_look_and_ends_with_an_answer() -> None:
    silence = Silence(100.0)
    assert [silence.look(101.0), silence.look(102.0), silence.look(103.0)] == [1.0, 2.0, 3.0]
    known = [silence.known]
    silence.look(104.0)
    known.append(silence.known)
    silence.heard(104.5)
    known.append(silence.known)
    assert known == [False, True, False]
    assert silence.look(105.0) == 0.5


def test_while_the_parent_was_away_nobody_was_silent() -> None:
    silence = Silence(0.0)
    silence.look(1.0)
    assert silence.look(1000.0) <= 1.0 + 2 * LOOK_S


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50))
def test_it_is_never_longer_than_the_time_nor_than_what_was_looked_at(pauses: list[float]) -> None:
    now, silence = 0.0, Silence(0.0)
    for count, pause in enumerate(pauses, 1):
        now += pause
        assert silence.look(now) <= min(now, count * 2 * LOOK_S) + 1e-6
