from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from router.core import Candidate, Leg
from router.scheduling.plugins import Context, Filter, Picker, Scorer
from router.scheduling.profile import DrainedError, Named, Profile, Weighted
from tests.support.scheduling import candidate, context, ids

POOL = [candidate("a", inflight=2), candidate("b", inflight=1), candidate("c")]


@dataclass
class Keep:
    kept: Sequence[str]
    preference: bool = False
    saturation: bool = False

    def filter(self, _context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return [c for c in candidates if c.id in self.kept]


@dataclass
class Scores:
    by_id: dict[str, float]

    def score(self, _context: Context, candidates: Sequence[Candidate]) -> list[float]:
        return [self.by_id[c.id] for c in candidates]


class Best:
    def pick(self, _context: Context, candidates: Sequence[Candidate], scores: Sequence[float]) -> Sequence[Candidate]:
        return [candidates[i] for i in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)]


class Broken:
    """Raises whatever it is asked."""

    def filter(self, *_: object) -> Sequence[Candidate]:
        raise RuntimeError("filter")

    def score(self, *_: object) -> list[float]:
        raise RuntimeError("score")

    def pick(self, *_: object) -> Sequence[Candidate]:
        raise RuntimeError("pick")


@dataclass
class Answers:
    """Answers with what it is given, right or wrong."""

    answer: object

    def filter(self, *_: object) -> Sequence[Candidate]:
        return self.answer  # type: ignore[return-value]

    def score(self, *_: object) -> list[float]:
        return self.answer  # type: ignore[return-value]

    def pick(self, *_: object) -> Sequence[Candidate]:
        return self.answer  # type: ignore[return-value]


@dataclass
class Failures:
    seen: list[tuple[str, Leg, str]] = field(default_factory=list)

    def __call__(self, plugin: str, leg: Leg, error: Exception) -> None:
        self.seen.append((plugin, leg, type(error).__name__))


def profile(
    filters: Sequence[Filter] = (),
    scorers: Sequence[tuple[Scorer, float]] = (),
    picker: Picker | None = None,
    failures: Failures | None = None,
) -> Profile:
    return Profile(
        Leg.DECODE,
        [Named(f"f{i}", f) for i, f in enumerate(filters)],
        [Weighted(f"s{i}", s, w) for i, (s, w) in enumerate(scorers)],
        Named("p", picker or Best()),
        failures or Failures(),
    )


def test_filters_narrow_in_turn_and_weighted_scores_add_up() -> None:
    one, two = Scores({"a": 1.0, "b": 0.0, "c": 0.0}), Scores({"a": 0.0, "b": 1.0, "c": 1.0})
    ran = profile([Keep("abc"), Keep("ab")], [(one, 1.0), (two, 1.5)]).run(context(), POOL)
    assert ids(ran) == ["b", "a"]


def test_scores_are_noted_only_when_asked() -> None:
    table: dict[str, dict[str, float]] = {}
    profile(scorers=[(Scores({"a": 1.0, "b": 0.5, "c": 0.0}), 2.0)]).run(context(), POOL, table)
    assert table == {"a": {"s0": 2.0}, "b": {"s0": 1.0}, "c": {"s0": 0.0}}


def test_scores_outside_the_range_are_clamped() -> None:
    wild, tame = Scores({"a": 100.0, "b": -100.0, "c": 0.0}), Scores({"a": 0.0, "b": 1.0, "c": 0.9})
    assert ids(profile(scorers=[(wild, 1.0), (tame, 2.0)]).run(context(), POOL)) == ["b", "c", "a"]


def test_a_weight_of_zero_switches_a_scorer_off() -> None:
    failures = Failures()
    profile(scorers=[(Broken(), 0.0)], failures=failures).run(context(), POOL)
    assert failures.seen == []


@pytest.mark.parametrize("saturation", [False, True])
def test_a_filter_that_leaves_nobody_says_whether_it_is_saturation(saturation: bool) -> None:
    with pytest.raises(DrainedError) as drained:
        profile([Keep("ab"), Keep("", saturation=saturation)]).run(context(), POOL)
    assert (drained.value.filter_name, drained.value.of, drained.value.saturated) == ("f1", 2, saturation)


def test_what_a_preference_drops_stays_as_the_last_fallbacks_least_loaded_first() -> None:
    more = [*POOL, candidate("d", inflight=9)]
    assert ids(profile([Keep("d", preference=True)]).run(context(), more)) == ["d", "c", "b", "a"]


def test_a_preference_that_leaves_nobody_is_as_if_it_were_not_there() -> None:
    assert ids(profile([Keep("", preference=True)]).run(context(), POOL)) == ["a", "b", "c"]


def test_a_plugin_that_raises_is_skipped_and_reported() -> None:
    failures = Failures()
    good = Scores({"a": 0.0, "b": 0.5, "c": 1.0})
    ran = profile([Broken(), Keep("abc")], [(Broken(), 5.0), (good, 1.0)], Broken(), failures).run(context(), POOL)
    assert ids(ran) == ["c", "b", "a"]
    assert failures.seen == [(name, Leg.DECODE, "RuntimeError") for name in ("f0", "s0", "p")]


@pytest.mark.parametrize("answer", [[1.0], [float("nan")] * 3, [None] * 3, None, 7, ["1", "2", "3"]])
def test_a_scorer_that_answers_nonsense_is_skipped_and_reported(answer: object) -> None:
    failures = Failures()
    good = Scores({"a": 0.0, "b": 0.5, "c": 1.0})
    assert ids(profile(scorers=[(Answers(answer), 9.0), (good, 1.0)], failures=failures).run(context(), POOL)) == [
        "c",
        "b",
        "a",
    ]
    assert [name for name, _, _ in failures.seen] == ["s0"]


@pytest.mark.parametrize("answer", [None, 7, []])
def test_a_picker_that_answers_nonsense_is_replaced_by_the_order_of_scores(answer: object) -> None:
    failures = Failures()
    good = Scores({"a": 0.0, "b": 0.5, "c": 1.0})
    ran = profile(scorers=[(good, 1.0)], picker=Answers(answer), failures=failures).run(context(), POOL)
    assert ids(ran) == ["c", "b", "a"]
    assert [name for name, _, _ in failures.seen] == ["p"]


def test_a_filter_that_answers_nonsense_is_skipped_and_reported() -> None:
    failures = Failures()
    assert ids(profile([Answers(None)], failures=failures).run(context(), POOL)) == ["a", "b", "c"]
    assert [name for name, _, _ in failures.seen] == ["f0"]
