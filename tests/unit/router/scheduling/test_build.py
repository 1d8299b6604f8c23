from typing import Any

import pytest
from pydantic import ValidationError

from router.errors import ConfigError
from router.plugins.builtin import BUILTIN, builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from router.scheduling.plugins import Decider, Filter, Picker, Scorer

REQUIRED: dict[str, dict[str, Any]] = {
    "active-request-filter": {"maxRequests": 1},
    "by-label": {"label": "a"},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 0}]},
}


def refused(settings: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        build_scheduler(SchedulingSettings.model_validate(settings), builtin_registry())
    return str(error.value)


@pytest.mark.parametrize("type_", sorted(BUILTIN))
def test_every_built_in_type_is_a_plugin_and_refuses_unknown_parameters(type_: str) -> None:
    plugin = builtin_registry().create(type_, "x", REQUIRED.get(type_, {}))
    assert isinstance(plugin, Filter | Scorer | Picker | Decider)
    with pytest.raises(ConfigError, match=f"plugin 'x' of type '{type_}': parameter 'nosuch' is unknown"):
        builtin_registry().create(type_, "x", {**REQUIRED.get(type_, {}), "nosuch": 1})


def test_the_default_settings_build() -> None:
    build_scheduler(SchedulingSettings(), builtin_registry())


def test_a_plugin_that_is_not_what_its_place_needs_is_refused_with_the_key() -> None:
    message = refused({"profiles": {"decode": {"scorers": [{"plugin": "max-score-picker"}]}}})
    assert message.startswith("scheduling.profiles.decode.scorers[0]: plugin 'max-score-picker' is not a scorer")
    assert refused({"profiles": {"prefill": {"filters": ["queue-scorer"]}}}).startswith(
        "scheduling.profiles.prefill.filters[0]"
    )
    assert refused({"profiles": {"decode": {"picker": "queue-scorer"}}}).startswith("scheduling.profiles.decode.picker")
    assert refused({"decider": "queue-scorer"}).startswith("scheduling.decider")


def test_an_unknown_type_is_refused_with_the_key_and_a_suggestion() -> None:
    message = refused({"profiles": {"decode": {"scorers": [{"plugin": "prefix-cache-scorrer"}]}}})
    assert message.startswith("scheduling.profiles.decode.scorers[0]: plugin 'prefix-cache-scorrer'")
    assert "did you mean prefix-cache-scorer" in message


def test_two_plugins_of_one_name_are_refused() -> None:
    twice = [{"type": "queue-scorer"}, {"type": "load-aware-scorer", "name": "queue-scorer"}]
    assert refused({"plugins": twice}).startswith("scheduling.plugins[1]: the name 'queue-scorer' is taken")


def test_wrong_parameters_are_refused_with_the_key() -> None:
    plugins = [{"type": "load-aware-scorer", "parameters": {"threshold": "high"}}]
    assert refused({"plugins": plugins}).startswith(
        "scheduling.plugins[0]: plugin 'load-aware-scorer' of type 'load-aware-scorer': parameter 'threshold'"
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"profile": {}},
        {"profiles": {"encode": {}}},
        {"profiles": {"decode": {"scorers": [{"plugin": "queue-scorer", "weight": -1}]}}},
        {"profiles": {"decode": {"scorers": [{"plugin": "queue-scorer", "weight": float("inf")}]}}},
        {"plugins": [{"name": "no-type"}]},
    ],
)
def test_what_the_tree_does_not_know_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SchedulingSettings.model_validate(settings)
