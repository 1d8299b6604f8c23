"""The router that a module of fuzz tests bombards, and the mark of them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fuzz import World, fuzzed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/fuzz/" in str(item.path):
            item.add_marker(pytest.mark.fuzz)
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One for all inputs of a module: what they leave behind is looked for at its end."""
    with fuzzed() as world:
        yield world
