from typing import Any

import pytest

from router.errors import ConfigError
from router.plugins.filters.label_selector import LabelSelectorFilter
from tests.support.scheduling import candidate, context, ids

POOL = [
    candidate("a", labels={"gpu": "h100", "zone": "1"}),
    candidate("b", labels={"gpu": "a100", "zone": "1"}),
    candidate("c", labels={"zone": "2"}),
]


@pytest.mark.parametrize(
    ("selector", "kept"),
    [
        ({}, ["a", "b", "c"]),
        ({"matchLabels": {"zone": "1", "gpu": "h100"}}, ["a"]),
        ({"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h100", "a100"]}]}, ["a", "b"]),
        ({"matchExpressions": [{"key": "gpu", "operator": "NotIn", "values": ["h100"]}]}, ["b", "c"]),
        ({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, ["a", "b"]),
        ({"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}, ["c"]),
        (
            {"matchLabels": {"zone": "1"}, "matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]},
            ["b"],
        ),
    ],
)
def test_all_labels_and_all_expressions_must_hold(selector: dict[str, Any], kept: list[str]) -> None:
    assert ids(LabelSelectorFilter.create(selector).filter(context(), POOL)) == kept


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        ({"key": "gpu", "operator": "In"}, "needs values"),
        ({"key": "gpu", "operator": "Exists", "values": ["x"]}, "takes no values"),
        ({"key": "gpu", "operator": "Near"}, "operator"),
    ],
)
def test_an_expression_that_means_nothing_is_refused(expression: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        LabelSelectorFilter.create({"matchExpressions": [expression]})
