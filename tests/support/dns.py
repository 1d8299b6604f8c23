"""A name server on loopback that answers what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer(asyncio.DatagramProtocol):
    """`records[(name, kind)]` is a list of record texts; other kinds of a known name are empty, other names do not
    exist. `failing` answers SERVFAIL to all; `silent` does not answer."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl = 5
        self.failing = False
        self.silent = False
        self.questions: list[str] = []
        self._transport: asyncio.DatagramTransport | None = None

    @property
    def address(self) -> tuple[str, int]:
        assert self._transport is not None
        host, port = self._transport.get_extra_info("sockname")[:2]
        return host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The event loop's own datagram transport is no subclass of asyncio's.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        self.questions.append(f"{name} {kind}")
        if self.silent:
            return
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA | dns.flags.RA
        found = self.records.get((name, kind))
        if self.failing:
            response.set_rcode(dns.rcode.SERVFAIL)
        elif found:
            response.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", kind, *found))
        elif name not in {known for known, _ in self.records}:
            response.set_rcode(dns.rcode.NXDOMAIN)
        assert self._transport is not None
        self._transport.sendto(response.to_wire(), addr)


@asynccontextmanager
async def name_server() -> AsyncIterator[NameServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
        await asyncio.sleep(0)
