from __future__ import annotations

import re
from typing import Any

import pytest

from loadtest.overload import CONFIG, WEIGHTS, Bounds, Outcome, main, unmet
from router.settings import Settings

WHOLE = sum(WEIGHTS.values())
GOOD = Outcome(
    routers=1,
    capacity=1000.0,
    ttft_80_s=0.1,
    ttft_300_s=0.12,
    shares={name: weight / WHOLE for name, weight in WEIGHTS.items()},
    goodput=950.0,
    refusal_s=0.004,
    refused=10,
    requests=30,
    statuses={200: 20, 429: 10},
    without_retry_after=0,
)


def test_a_run_that_keeps_every_bound_has_no_complaint() -> None:
    assert unmet(GOOD, Bounds()) == []


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ({"ttft_300_s": 0.2}, "TTFT is 2.00"),
        ({"ttft_300_s": float("inf")}, "TTFT is inf"),
        ({"shares": {"bronze": 0.2, "silver": 0.3, "gold": 0.5}}, "20.0% from its weight's"),
        ({"shares": {}}, "100.0% from its weight's"),
        ({"goodput": 850.0}, "goodput is 85.0%"),
        ({"refusal_s": 0.03}, "takes 30.0 ms"),
        ({"statuses": {200: 1, 503: 2}}, r"status \[503\]"),
        ({"without_retry_after": 3}, "3 refusals without Retry-After"),
    ],
)
def test_each_bound_that_is_broken_is_named(broken: dict[str, Any], told: str) -> None:
    (complaint,) = unmet(GOOD._replace(**broken), Bounds())
    assert complaint.startswith("1 router: ")
    assert re.search(told, complaint)


def test_several_routers_may_be_a_little_further_from_the_weights() -> None:
    shares = {"bronze": 1 / 6 * 1.13, "silver": 1 / 3, "gold": 0.5 - 1 / 6 * 0.13}
    assert unmet(GOOD._replace(shares=shares), Bounds())
    assert not unmet(GOOD._replace(shares=shares, routers=2), Bounds())


def test_the_routers_configuration_is_one() -> None:
    assert Settings.model_validate(CONFIG).flow_control.tenant_weights == WEIGHTS


def test_a_senseless_number_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--routers", "0"])
    assert ended.value.code == 2
    assert capsys.readouterr().err
