"""What the OpenAPI schema invites to and does not: schemathesis asks every operation, rightly and wrongly."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import schemathesis
from hypothesis import given
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from tests.support.fuzz import World, judge, share

_ORDERS = ("/admin/",)
"""Orders would be followed: the router would drain."""


def test_any_operation(world: World) -> None:
    document = world.run(world.at.client.get("/openapi.json")).json()
    schema = schemathesis.openapi.from_dict(document)
    operations = []
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operations.append(found.ok())
    cases = st.one_of(
        *(
            operation.as_strategy(generation_mode=mode)
            for operation in operations
            if not operation.path.startswith(_ORDERS)
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        )
    )

    async def ask(case: schemathesis.Case[Any]) -> httpx.Response:
        arguments = case.as_transport_kwargs(base_url=world.at.router.url)
        arguments.pop("cookies", None)
        if isinstance(arguments.get("data"), bytes | str):
            arguments["content"] = arguments.pop("data")
        async with asyncio.timeout(30):
            return await world.at.client.request(**arguments)

    @share(0.05)
    @given(cases)
    def each(case: schemathesis.Case[Any]) -> None:
        try:
            answer = world.run(ask(case))
        except (httpx.LocalProtocolError, httpx.InvalidURL):
            # The client's library refuses to send it.
            return
        fields = {name.lower(): value for name, value in answer.headers.raw}
        judge(answer.status_code, fields, answer.content, head=case.method.upper() == "HEAD")

    each()
