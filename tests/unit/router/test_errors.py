from __future__ import annotations

import json

import pytest

from router.errors import ModelNotFound, Overloaded, RouterError


@pytest.mark.parametrize("kind", [RouterError, *RouterError.__subclasses__(), ModelNotFound])
def test_every_refusal_has_openais_shape(kind: type[RouterError]) -> None:
    error = kind("words")
    assert json.loads(error.body()) == {
        "error": {"message": "words", "type": kind.type, "param": None, "code": kind.code or kind.status}
    }
    assert 400 <= error.status < 600


def test_overload_says_when_to_come_back() -> None:
    assert (b"retry-after", b"3") in Overloaded("busy", retry_after_s=3).headers()
