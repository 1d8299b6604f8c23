from __future__ import annotations

import pytest
import yaml

from router.capacity.laws import Profile
from router.capacity.variants import Variant, VariantError, learnt, read, written
from tests.support.planning import variant


def test_what_is_written_is_read_again() -> None:
    variants = (variant("a", cost_per_hour=3.5, hardware="h100", accelerators=4), variant("b"))
    assert read(yaml.safe_load(yaml.safe_dump(written(variants)))) == variants


def test_by_hand_a_name_suffices() -> None:
    assert read({"variants": [{"name": "h100"}]}) == (Variant(name="h100"),)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (None, "no list named variants"),
        ({"variants": []}, "no list named variants"),
        ({"variants": [{"cost_per_hour": 1.0}]}, "name"),
        ({"variants": [{"name": "a", "price": 1.0}]}, "price"),
        ({"variants": [{"name": "a", "cost_per_hour": -1.0}]}, "cost_per_hour"),
        ({"variants": [{"name": "a"}, {"name": "a"}]}, "a is there twice"),
        ({"variants": [{"name": " "}]}, "name must not be empty"),
        ({"variants": [{"name": "a", "laws": {"tokens_s": 1e-4}}]}, "a: laws has no tokens_s"),
        ({"variants": [{"name": "a", "laws": {"pair_s": -1e-9}}]}, "a: laws.pair_s is -1e-09"),
        ({"variants": [{"name": "a", "laws": {"pair_s": float("nan")}}]}, "a: laws.pair_s is nan"),
        ({"variants": [{"name": "a", "laws": {"token_s": 0, "step_base_s": 0}}]}, "a: laws.token_s is 0"),
    ],
)
def test_bad_variants_are_said_in_a_sentence(document: object, said: str) -> None:
    with pytest.raises(VariantError, match=said):
        read(document)


def test_what_is_trusted_of_its_endpoints_takes_the_place_of_what_was_given() -> None:
    fast = Profile(token_s=1 / 20_000)
    assert learnt(variant(), [(fast, 0.9), (Profile(), 0.1)]).laws == fast
    assert learnt(variant(), [(fast, 0.2)]) == variant()
    assert learnt(variant(), [], [300_000, 100_000, 200_000]).kv_tokens == 200_000
