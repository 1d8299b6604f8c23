from __future__ import annotations

import logging

import pytest

from router.observability.access import AccessLog
from tests.support.observations import ended


def test_the_access_line_names_who_served_and_holds_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kvrouter.access"):
        AccessLog().on_end(ended())
    (line,) = caplog.messages
    assert line.startswith("r1 chat 200 ok endpoint=a")
    assert "hello" not in line
