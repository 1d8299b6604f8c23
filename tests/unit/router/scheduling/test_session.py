import msgspec

from router.scheduling.session import SESSION_HEADERS, header, session_id
from tests.support.scheduling import context, request


def test_the_first_known_header_with_a_value_names_the_session() -> None:
    asked = request(routing_headers={SESSION_HEADERS[0]: "", SESSION_HEADERS[2]: "two", SESSION_HEADERS[1]: "one"})
    assert session_id(context(request_=asked)) == "one"
    assert session_id(context()) is None


def test_a_named_header_may_be_one_that_just_goes_upstream() -> None:
    asked = msgspec.structs.replace(request(), headers=((b"x-team", b"red"), (b"x-empty", b"")))
    assert session_id(context(request_=asked), "X-Team") == "red"
    assert session_id(context(request_=asked), "x-empty") is None
    assert header(asked, "x-none") is None


def test_a_name_that_cannot_be_a_header_is_just_absent() -> None:
    assert header(request(), "x-é世") is None
