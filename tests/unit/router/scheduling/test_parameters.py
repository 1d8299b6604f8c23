from typing import Any

import pytest

from router.errors import ConfigError
from router.scheduling.parameters import Parameters


class Sample(Parameters, frozen=True):
    some_number: float = 1.0
    switch: bool = False


class Bare(Parameters, frozen=True):
    pass


def test_keys_are_camel_case_and_defaults_hold() -> None:
    assert Sample.create({"someNumber": 3}) == Sample(some_number=3.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"someNumbr": 3}, "'someNumbr' is unknown: did you mean 'someNumber'"),
        ({"some_number": 3}, "'some_number' is unknown: did you mean 'someNumber'"),
        ({"zzz": 1}, "'zzz' is unknown: It takes someNumber, switch"),
        ({"someNumber": "3"}, "'someNumber' has a wrong value: Expected `float`, got `str`"),
        ({"someNumber": True}, "'someNumber'"),
        ({"switch": 1}, "'switch' has a wrong value"),
        ({1: 2}, "1 is unknown"),
    ],
)
def test_anything_else_is_refused_with_the_key_and_the_mend(parameters: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Sample.create(parameters)
    assert message in str(refused.value)


def test_a_plugin_without_parameters_says_so() -> None:
    with pytest.raises(ConfigError, match="takes no parameters"):
        Bare.create({"a": 1})
