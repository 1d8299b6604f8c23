from router.core import Candidate
from router.plugins.scorers.context_length_aware import ContextLengthAware
from tests.support.scheduling import candidate, context, ids, prompt

LABEL = "llm-d.ai/context-length-range"


def pool(*ranges: str | None) -> list[Candidate]:
    return [candidate(str(r), labels={} if r is None else {LABEL: r}) for r in ranges]


def test_in_range_beats_unlabelled_only_when_specific_and_always_beats_out_of_range() -> None:
    scores = ContextLengthAware().score(
        context(prompt(token_count=1000)), pool("0-1024", "0-1000000", None, "2000-9000")
    )
    tight, wide, unlabelled, outside = scores
    assert tight > wide > 0.3 > outside > 0.0
    assert unlabelled == 0.5


def test_out_of_range_the_nearest_is_best() -> None:
    near, far = ContextLengthAware().score(context(prompt(token_count=9000)), pool("0-8192", "0-2048"))
    assert near > far


def test_a_label_that_is_no_range_counts_as_none() -> None:
    assert ContextLengthAware().score(context(), pool("small", "8k-9k", "-")) == [0.5, 0.5, 0.5]


def test_it_filters_only_when_told() -> None:
    candidates = pool("0-1024", "2000-9000", None)
    asked = context(prompt(token_count=1000))
    assert ids(ContextLengthAware().filter(asked, candidates)) == ids(candidates)
    assert ids(ContextLengthAware(enable_filtering=True).filter(asked, candidates)) == ["0-1024", "None"]
