from router.plugins.deciders.fixed import AlwaysDisaggPdDecider, NeverDisaggPdDecider
from tests.support.scheduling import candidate, context


def test_the_answer_is_always_the_same() -> None:
    assert AlwaysDisaggPdDecider().decide(context(), candidate()).disaggregate
    assert not NeverDisaggPdDecider().decide(context(), candidate()).disaggregate
