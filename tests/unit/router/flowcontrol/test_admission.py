"""How many requests the router works on at once."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from router.errors import Overloaded
from router.flowcontrol.admission import Admission


def test_one_more_than_the_limit_is_refused_and_one_that_ends_makes_room() -> None:
    admission = Admission(2)
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(admission)
        second.enter_context(admission)
        with pytest.raises(Overloaded), admission:
            pass
        second.close()
        with admission:
            assert admission.active == 2
    assert (admission.active, admission.refused) == (0, 1)


def test_a_lower_limit_sends_nobody_away_who_is_inside() -> None:
    admission = Admission(3)
    with admission, admission:
        admission.limit = 1
        with pytest.raises(Overloaded), admission:
            pass
        assert admission.active == 2
    with admission:
        assert admission.active == 1
