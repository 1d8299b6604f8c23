"""Relay: one request and its answer, connection reuse, time-outs, aborts."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from router.core import Endpoint
from router.ports import Reliance, UpstreamBroken, UpstreamOrphaned, UpstreamRefused, UpstreamSilent
from router.upstream.connection import Limits, RelayResponse
from router.upstream.connections import Connections
from router.upstream.relay import ConnectionCounts, Relay, RelayOptions
from router.wire.http_head import RequestHeadError
from tests.support.loops import on_both_loops
from tests.support.rawserver import Peer, RawServer, answers, keeps_alive

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
QUICK = RelayOptions(sweep_s=0.02)


@asynccontextmanager
async def relaying(options: RelayOptions = QUICK) -> AsyncIterator[Relay]:
    relay = Relay(options)
    try:
        yield relay
    finally:
        await relay.aclose()
        assert relay.counts() == {}


def at(url: str) -> Endpoint:
    return Endpoint(id="engine", url=url)


async def post(
    relay: Relay, url: str, body: bytes = b"{}", *, path: str = "/v1/x", timeout_s: float | None = None
) -> RelayResponse:
    return await relay.open(at(url), b"POST", path, [(b"x-a", b"1")], body, first_byte_timeout_s=timeout_s)


async def body_of(response: RelayResponse) -> bytes:
    parts = []
    while part := await response.read():
        parts.append(part)
    return b"".join(parts)


@on_both_loops
async def test_a_request_arrives_whole_and_its_answer_comes_back() -> None:
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        response = await post(relay, server.url + "/prefix", b"body", path="/v1/x?y=1")
        assert (response.status, response.headers) == (200, ((b"content-length", b"2"),))
        assert await body_of(response) == b"hi"
        assert await response.read() == b""
        assert response.ended
        await response.close()
    [request] = server.requests
    assert request.line == b"POST /prefix/v1/x?y=1 HTTP/1.1"
    assert request.body == b"body"
    assert request.headers == (
        (b"host", server.url.removeprefix("http://").encode()),
        (b"x-a", b"1"),
        (b"accept-encoding", b"identity"),
        (b"content-length", b"4"),
    )


@on_both_loops
async def test_each_piece_is_handed_on_as_it_comes() -> None:
    proceed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"3\r\none\r\n")
        await proceed.wait()
        await peer.send(b"3\r\ntwo\r\n0\r\n\r\n")

    async with RawServer(script) as server, relaying() as relay:
        response = await post(relay, server.url)
        assert await response.read() == b"one"
        assert response.read_nowait() == b""
        assert not response.ended
        proceed.set()
        assert await response.read() == b"two"
        assert await response.read() == b""


@on_both_loops
async def test_open_waits_for_the_first_body_byte_and_not_for_the_head() -> None:
    proceed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await proceed.wait()
        await peer.send(b"1\r\n!\r\n0\r\n\r\n")

    async with RawServer(script) as server, relaying() as relay:
        opening = asyncio.ensure_future(post(relay, server.url))
        await server.until(lambda s: s.sent_bytes > 0)
        done, _ = await asyncio.wait({opening}, timeout=0.05)
        assert not done
        proceed.set()
        assert await body_of(await opening) == b"!"


@on_both_loops
async def test_interim_answers_are_skipped() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with RawServer(answers(interim, interim + OK)) as server, relaying() as relay:
        response = await post(relay, server.url)
        assert response.headers == ((b"content-length", b"2"),)
        assert await body_of(response) == b"hi"


@on_both_loops
async def test_repeated_fields_stay_apart_and_in_order_hdr_15() -> None:
    head = b"HTTP/1.1 200 OK\r\nSet-Cookie: a\r\nX-B:\r\nset-cookie: b\r\ncontent-length: 0\r\n\r\n"
    async with RawServer(answers(head)) as server, relaying() as relay:
        response = await post(relay, server.url)
        assert response.headers[:3] == ((b"set-cookie", b"a"), (b"x-b", b""), (b"set-cookie", b"b"))


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
@on_both_loops
async def test_an_answer_without_a_body_ends_with_its_head(status: bytes) -> None:
    async with RawServer(keeps_alive(b"HTTP/1.1 " + status + b"\r\n\r\n")) as server, relaying() as relay:
        for _ in range(2):
            response = await post(relay, server.url)
            assert response.ended
        assert server.connections == 1


@on_both_loops
async def test_the_answer_to_head_has_a_length_and_no_body() -> None:
    async with RawServer(keeps_alive(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as server, relaying() as relay:
        for _ in range(2):
            response = await relay.open(at(server.url), b"HEAD", "/", [], b"")
            assert response.ended
            assert (b"content-length", b"5") in response.headers


@on_both_loops
async def test_a_connection_serves_one_request_after_another() -> None:
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        for _ in range(5):
            await body_of(await post(relay, server.url))
        assert server.connections == 1
        assert relay.counts() == {server.url: ConnectionCounts(open=1, idle=1)}


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        OK + b"extra",
        OK + OK,
    ],
    ids=["close", "http-1.0", "garbage-behind", "second-answer-behind"],
)
@on_both_loops
async def test_a_connection_that_may_not_be_reused_is_not(answer: bytes) -> None:
    async with RawServer(keeps_alive(answer)) as server, relaying() as relay:
        for _ in range(3):
            assert await body_of(await post(relay, server.url)) == b"hi"
        assert server.connections == 3


@on_both_loops
async def test_bytes_on_an_idle_connection_never_become_an_answer_hdr_16() -> None:
    answered = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if not peer.index:
            await answered.wait()
            await peer.send(OK.replace(b"hi", b"no"))
        await peer.gone()

    async with RawServer(script) as server, relaying(QUICK._replace(keep_idle_s=60)) as relay:
        assert await body_of(await post(relay, server.url)) == b"hi"
        answered.set()
        await server.until(lambda s: s.ended == 1)
        assert await body_of(await post(relay, server.url)) == b"hi"
        assert server.connections == 2


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("when", ["after the answer", "on the next request"])
@on_both_loops
async def test_a_kept_connection_that_the_engine_closed_is_replaced_ret_05(when: str, reset: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        if when == "on the next request":
            await peer.head()
        if reset:
            peer.reset()

    async with RawServer(script) as server, relaying() as relay:
        for number in range(100):
            response = await post(relay, server.url)
            assert (response.status, await body_of(response)) == (200, b"hi")
            if number % 3 == 0:
                await asyncio.sleep(0.002)


@on_both_loops
async def test_a_fresh_connection_that_closes_without_an_answer_is_not_tried_again_ret_07() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with RawServer(script) as server, relaying() as relay:
        with pytest.raises(UpstreamBroken):
            await post(relay, server.url)
        assert server.connections == 1


@on_both_loops
async def test_a_request_that_an_engine_may_have_worked_on_is_not_sent_again() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await asyncio.sleep(0.1)

    async with RawServer(script) as server, relaying(QUICK._replace(replace_within_s=0.01)) as relay:
        await body_of(await post(relay, server.url))
        with pytest.raises(UpstreamBroken):
            await post(relay, server.url)
        assert server.connections == 1


@on_both_loops
async def test_a_request_that_was_answered_in_part_is_never_sent_again_ret_06() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 200")
        peer.close()

    async with RawServer(script) as server, relaying() as relay:
        await body_of(await post(relay, server.url))
        with pytest.raises(UpstreamBroken):
            await post(relay, server.url)
        assert len(server.requests) == 2


@on_both_loops
async def test_a_cut_body_gives_what_came_and_then_the_break() -> None:
    async with RawServer(answers(CHUNKED + b"3\r\none\r\n3\r\ntw")) as server, relaying() as relay:
        response = await post(relay, server.url)
        got = b""
        with pytest.raises(UpstreamBroken, match="in the middle"):
            while part := await response.read():
                got += part
        assert got == b"onetw"
        with pytest.raises(UpstreamBroken):
            await response.read()
        assert not response.ended


@on_both_loops
async def test_a_body_framed_by_the_close_ends_with_it() -> None:
    async with RawServer(answers(b"HTTP/1.1 200 OK\r\n\r\nhel", b"lo")) as server, relaying() as relay:
        assert await body_of(await post(relay, server.url)) == b"hello"
        assert server.connections == 1


@on_both_loops
async def test_no_listener_is_a_refusal_ret_12a() -> None:
    async with RawServer(answers()) as server:
        url = server.url
    async with relaying() as relay:
        with pytest.raises(UpstreamRefused, match="refused"):
            await post(relay, url)


@pytest.mark.parametrize("url", ["ftp://h", "http://", "http://h:99999", "http://u:p@h", "http://h/?q", "nonsense"])
@on_both_loops
async def test_an_unusable_url_is_a_refusal(url: str) -> None:
    async with relaying() as relay:
        with pytest.raises(UpstreamRefused):
            await post(relay, url)


@on_both_loops
async def test_a_connect_that_takes_too_long_is_a_refusal() -> None:
    # A listener whose backlog is full drops further connection attempts, so that they wait.
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        async with relaying(QUICK._replace(connect_timeout_s=0.1)) as relay:
            with pytest.raises(UpstreamRefused, match="time"):
                await post(relay, f"http://127.0.0.1:{listener.getsockname()[1]}")
        for filler in fillers:
            filler.close()


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 100 Continue\r\n\r\n", CHUNKED], ids=["nothing", "interim", "head"])
@on_both_loops
async def test_silence_before_the_first_byte_ends_at_the_time_limit_ret_12b(said: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if said:
            await peer.send(said)
        await peer.gone()

    async with RawServer(script) as server, relaying() as relay:
        with pytest.raises(UpstreamSilent):
            await post(relay, server.url, timeout_s=0.05)
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_silence_between_two_pieces_ends_at_the_time_limit() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.gone()

    options = QUICK._replace(limits=Limits(idle_timeout_s=0.05))
    async with RawServer(script) as server, relaying(options) as relay:
        response = await post(relay, server.url)
        assert await response.read() == b"a"
        with pytest.raises(UpstreamSilent):
            await response.read()
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_a_reader_that_takes_its_time_is_not_taken_for_a_silent_engine() -> None:
    script = answers(CHUNKED + b"1\r\na\r\n", b"1\r\nb\r\n0\r\n\r\n")
    async with RawServer(script) as server, relaying(QUICK._replace(limits=Limits(idle_timeout_s=0.03))) as relay:
        response = await post(relay, server.url)
        await asyncio.sleep(0.15)
        assert await body_of(response) == b"ab"


@on_both_loops
async def test_closing_before_the_end_closes_the_connection_dis_02() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.gone()

    async with RawServer(script) as server, relaying() as relay:
        response = await post(relay, server.url)
        await response.close()
        await response.close()
        await server.until(lambda s: s.ended == 1)
        assert response.read_nowait() == b"a"
        with pytest.raises(UpstreamBroken):
            await response.read()


@on_both_loops
async def test_cancelling_while_waiting_for_the_first_byte_closes_the_connection_dis_08() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async with RawServer(script) as server, relaying() as relay:
        opening = asyncio.ensure_future(post(relay, server.url))
        await server.until(lambda s: len(s.requests) == 1)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_a_cancelled_read_can_be_taken_up_again() -> None:
    proceed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await proceed.wait()
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")

    async with RawServer(script) as server, relaying(QUICK._replace(limits=Limits(idle_timeout_s=0.05))) as relay:
        response = await post(relay, server.url)
        assert await response.read() == b"a"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.read(), 0.01)
        await asyncio.sleep(0.15)
        proceed.set()
        assert await body_of(response) == b"b"


@on_both_loops
async def test_an_idle_connection_is_closed_after_its_time_mem_03() -> None:
    def kept() -> int:
        return sum(type(thing) is Connections for thing in gc.get_objects())

    gc.collect()
    before = kept()
    async with RawServer(keeps_alive(OK)) as server, relaying(QUICK._replace(keep_idle_s=0.05)) as relay:
        await body_of(await post(relay, server.url))
        await server.until(lambda s: s.ended == 1)
        # Endpoints come and go: nothing is kept of one without connections.
        await server.until(lambda _: kept() <= before)
        assert relay.counts() == {}


@on_both_loops
async def test_an_idle_connection_that_the_engine_closes_goes_at_once() -> None:
    async with RawServer(answers(OK)) as server, relaying(QUICK._replace(keep_idle_s=60)) as relay:
        await body_of(await post(relay, server.url))
        async with asyncio.timeout(5):
            while relay.counts():
                await asyncio.sleep(0.005)


@on_both_loops
async def test_of_two_idle_connections_the_one_that_lives_is_counted() -> None:
    together = asyncio.Barrier(2)

    async def script(peer: Peer) -> None:
        await peer.request()
        await together.wait()
        await peer.send(OK)
        if peer.index:
            await peer.gone()

    async with RawServer(script) as server, relaying(QUICK._replace(keep_idle_s=60)) as relay:
        await asyncio.gather(*(post(relay, server.url) for _ in range(2)))
        await server.until(lambda _: relay.counts()[server.url] == ConnectionCounts(open=1, idle=1))


@on_both_loops
async def test_no_more_idle_connections_are_kept_than_allowed() -> None:
    together = asyncio.Barrier(6)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await together.wait()
            await peer.send(OK)

    async with RawServer(script) as server, relaying(QUICK._replace(max_idle=2)) as relay:
        await asyncio.gather(*(post(relay, server.url) for _ in range(6)))
        await server.until(lambda s: s.ended == 4)
        assert relay.counts()[server.url].idle == 2


@on_both_loops
async def test_aclose_breaks_what_is_running_and_refuses_what_comes() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.gone()

    async with RawServer(script) as server:
        relay = Relay(QUICK)
        response = await post(relay, server.url)
        assert await response.read() == b"a"
        reading = asyncio.ensure_future(response.read())
        await asyncio.sleep(0)
        await relay.aclose()
        await relay.aclose()
        with pytest.raises(UpstreamBroken):
            await reading
        with pytest.raises(UpstreamRefused):
            await post(relay, server.url)
        await server.until(lambda s: s.ended == 1)


@on_both_loops
async def test_ipv6_literals_are_connected_to_and_named_in_brackets() -> None:
    try:
        server = RawServer(keeps_alive(OK), host="::1")
        await server.__aenter__()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with relaying() as relay:
        assert await body_of(await post(relay, server.url)) == b"hi"
    await server.__aexit__(None, None, None)
    assert server.requests[0].values(b"host") == [b"[::1]:%d" % int(server.url.rpartition(":")[2])]


@pytest.mark.parametrize(
    ("path", "field"), [("/a b", b"v"), ("/a\r\nx: y", b"v"), ("a", b"v"), ("/", b"v\r\nx: y"), ("/", b"v\0")]
)
@on_both_loops
async def test_a_head_that_would_not_stay_in_shape_is_not_sent(path: str, field: bytes) -> None:
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        with pytest.raises(RequestHeadError):
            await relay.open(at(server.url), b"POST", path, [(b"n", field)], b"")
        assert server.connections == 0


@on_both_loops
async def test_framing_of_the_callers_is_left_out_hdr_03() -> None:
    fields = [
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"9"),
        (b"host", b"x"),
        (b"expect", b"100-continue"),
    ]
    async with RawServer(keeps_alive(OK)) as server, relaying() as relay:
        await relay.open(at(server.url), b"POST", "/", fields, b"abc")
    [request] = server.requests
    assert (request.values(b"content-length"), request.values(b"transfer-encoding")) == ([b"3"], [])
    assert len(request.values(b"host")) == 1
    assert request.body == b"abc"


HOLDER = "http://holder:1"


class Waiting:
    """An answer that relies on another endpoint; `waits` may change."""

    def __init__(self, waits: bool = True) -> None:
        self.waits = waits
        self.asked = 0

    @property
    def reliance(self) -> Reliance:
        return Reliance(HOLDER, self._ask)

    def _ask(self) -> bool:
        self.asked += 1
        return self.waits


def gives_up(relay: Relay) -> None:
    relay.distrust(HOLDER)


def forsakes(relay: Relay) -> None:
    relay.forsake(HOLDER)


@pytest.mark.parametrize("leaves", [gives_up, forsakes])
async def test_an_answer_that_waits_for_what_is_gone_breaks_once_it_cannot_have_it_any_more(
    leaves: Callable[[Relay], None],
) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await asyncio.Event().wait()

    async with RawServer(silent) as server, relaying() as relay:
        waiting = Waiting(waits=False)
        opening = asyncio.create_task(
            relay.open(at(server.url), b"POST", "/v1/x", [], b"{}", relies_on=waiting.reliance)
        )
        while not relay.counts():
            await asyncio.sleep(0.005)
        leaves(relay)
        while waiting.asked < 3:
            await asyncio.sleep(0.005)
        assert not opening.done()
        waiting.waits = True
        with pytest.raises(UpstreamOrphaned):
            await opening


async def test_an_answer_that_has_begun_or_relies_on_another_endpoint_stays() -> None:
    go_on = asyncio.Event()

    async def begins(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await go_on.wait()
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")

    async def late(peer: Peer) -> None:
        await peer.request()
        await go_on.wait()
        await peer.send(OK)

    async with RawServer(begins) as one, RawServer(late) as two, relaying() as relay:
        first = await relay.open(at(one.url), b"POST", "/v1/x", [], b"{}", relies_on=Waiting().reliance)
        elsewhere = Waiting()
        second = asyncio.create_task(
            relay.open(
                at(two.url), b"POST", "/v1/x", [], b"{}", relies_on=Reliance("http://other:1", elsewhere.reliance.waits)
            )
        )
        while len(relay.counts()) < 2:
            await asyncio.sleep(0.005)
        relay.forsake(HOLDER)
        relay.distrust(HOLDER)
        await asyncio.sleep(4 * QUICK.sweep_s)
        go_on.set()
        assert await body_of(first) == b"ab"
        assert await body_of(await second) == b"hi"
        assert elsewhere.asked == 0
