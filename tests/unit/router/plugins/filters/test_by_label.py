from router.plugins.filters.by_label import ByLabel
from tests.support.scheduling import candidate, context, ids

POOL = [candidate("h100", labels={"gpu": "h100"}), candidate("a100", labels={"gpu": "a100"}), candidate("none")]


def test_only_listed_values_pass_and_a_missing_label_when_allowed() -> None:
    assert ids(ByLabel(label="gpu", valid_values=frozenset({"h100"})).filter(context(), POOL)) == ["h100"]
    allowing = ByLabel.create({"label": "gpu", "validValues": ["h100"], "allowsNoLabel": True})
    assert ids(allowing.filter(context(), POOL)) == ["h100", "none"]
