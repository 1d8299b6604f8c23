from importlib.metadata import EntryPoint

import pytest

from router.errors import ConfigError
from router.scheduling.registry import GROUP, Registry


def refuse(parameters: object) -> object:
    raise KeyError("colour")


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_built_in_and_installed_types_are_created_by_name() -> None:
    registry = Registry({"mine": dict}, [point("theirs", "builtins:dict")])
    assert registry.types() == ["mine", "theirs"]
    assert registry.create("mine", "x", {"a": 1}) == registry.create("theirs", "x", {"a": 1}) == {"a": 1}


def test_an_installed_type_is_imported_only_when_named() -> None:
    registry = Registry({"mine": dict}, [point("broken", "no_such_module_here:create")])
    assert registry.create("mine", "x", {}) == {}
    with pytest.raises(ConfigError, match="could not be imported from 'no_such_module_here:create'"):
        registry.create("broken", "x", {})


def test_a_package_may_not_take_a_built_in_name() -> None:
    with pytest.raises(ConfigError, match="'mine', which is built in"):
        Registry({"mine": dict}, [point("mine", "builtins:list")])


def test_two_packages_may_not_take_the_same_name() -> None:
    with pytest.raises(ConfigError, match="declared by both"):
        Registry({}, [point("theirs", "builtins:list"), point("theirs", "builtins:dict")])


def test_an_unknown_type_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"no plugin type .queue-scorr.: did you mean queue-scorer. If not, install"):
        Registry({"queue-scorer": dict}, []).create("queue-scorr", "q", {})


def test_a_factory_that_raises_is_named_with_its_plugin() -> None:
    with pytest.raises(ConfigError, match="plugin 'x' of type 'picky' refused its parameters"):
        Registry({"picky": refuse}, []).create("picky", "x", {})


def test_an_entry_point_that_is_no_factory_is_refused() -> None:
    with pytest.raises(ConfigError, match="not callable"):
        Registry({}, [point("constant", "math:pi")]).create("constant", "x", {})
