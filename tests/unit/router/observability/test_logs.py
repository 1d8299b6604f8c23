from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from router.observability.logs import configure


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("who", "named"), [(None, ""), ("worker 3", "worker 3 "), ("100%", "100% ")])
def test_each_line_names_its_process_where_there_are_several(
    who: str | None, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("info", "text", who)
    logging.getLogger("kvrouter.access").info("a line")
    assert capsys.readouterr().err.endswith(f" INFO    {named}kvrouter.access: a line\n")


@pytest.mark.parametrize("who", [None, "worker 3"])
def test_an_object_has_it_as_a_member(who: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "json", who)
    logging.getLogger("kvrouter.access").info("a line")
    said = json.loads(capsys.readouterr().err)
    assert said.get("process") == who
    assert (said["level"], said["logger"], said["message"]) == ("info", "kvrouter.access", "a line")
