from router.core import Leg
from router.plugins.pickers.round_robin import RoundRobinPicker
from tests.support.scheduling import candidate, context, ids

POOL = [candidate("c"), candidate("a"), candidate("b")]


def test_turns_go_by_id_and_each_leg_has_its_own() -> None:
    picker = RoundRobinPicker.create({})
    turns = [ids(picker.pick(context(), pool, [0.0] * 3)) for pool in (POOL, POOL[::-1], POOL, POOL)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert picker.pick(context(leg=Leg.PREFILL), POOL, [0.0] * 3)[0].id == "a"
