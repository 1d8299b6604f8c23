"""The sums of a run: unknown is not zero, and parts add up to the whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from loadtest.measure import Usage, _PromptDetails
from loadtest.tally import Tally


def usage(prompt: int, cached: int | None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=3, prompt_tokens_details=_PromptDetails(cached))


def test_the_hit_rate_leaves_out_who_did_not_tell() -> None:
    tally = Tally()
    tally.count(usage(100, 60), failed=False)
    tally.count(usage(900, None), failed=False)
    tally.count(None, failed=False)
    assert tally.hit_rate == 0.6
    assert tally.unreported == 2
    assert "hit rate 60.0 %" in str(tally)
    assert "2 answers did not tell" in str(tally)


def test_before_anything_was_told_the_hit_rate_is_unknown() -> None:
    tally = Tally()
    tally.count(None, failed=True)
    assert tally.hit_rate is None
    assert (tally.requests, tally.failures, tally.unreported) == (1, 1, 0)
    assert "hit rate unknown" in str(tally)


counts = st.builds(Tally, **{name: st.integers(0, 1000) for name in Tally.__struct_fields__})


@given(st.lists(counts))
def test_parts_add_up(parts: list[Tally]) -> None:
    whole = Tally()
    for part in parts:
        whole.add(part)
    assert whole.prompt_tokens == sum(part.prompt_tokens for part in parts)
    assert whole.failures == sum(part.failures for part in parts)
