from __future__ import annotations

import logging

import msgspec
import pytest

from router.core import Leg
from router.observability.access import AccessLog
from router.observability.events import Answered, LegFailed, Outcome
from tests.support.observations import ended


def test_the_access_line_names_who_served_and_holds_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kvrouter.access"):
        AccessLog().on_end(ended())
    (line,) = caplog.messages
    assert line.startswith("r1 chat 200 ok endpoint=a")
    assert "hello" not in line


def test_a_failed_leg_is_told_with_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    failed = LegFailed(request_id="r1", leg=Leg.DECODE, endpoint_id="a", kind="broken", detail="malformed: status 999")
    AccessLog().on_leg_failed(failed)
    AccessLog().on_leg_failed(msgspec.structs.replace(failed, kind="status", detail=""))
    assert caplog.messages == [
        "r1 decode leg failed on a: broken (malformed: status 999)",
        "r1 decode leg failed on a: status",
    ]


def test_an_answer_without_a_journey_has_a_line_of_the_same_form(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="kvrouter.access"):
        log = AccessLog()
        log.on_end(ended())
        log.on_answered(Answered(request_id="r2", api="chat", outcome=Outcome.CLIENT_ERROR, status=400, e2e_s=0.0015))
    known, line = caplog.messages
    assert line.startswith("r2 chat 400 client_error endpoint=None ")
    assert line.endswith(" e2e=0.0015")
    fields = [[word.partition("=")[0] for word in text.split()[4:]] for text in (known, line)]
    assert fields[0] == fields[1]
