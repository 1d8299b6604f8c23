from __future__ import annotations

from router.flowcontrol.entries import Entry, Lane
from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.queues import Queues
from router.flowcontrol.rivals import Rivals, told

SIZE = Limits(1000, 1_000_000)


def queues() -> Queues:
    return Queues(QueueLimits(total=SIZE, each_class=SIZE), Turns(quantum=100))


def entry(tenant: str, model: str = "m") -> Entry:
    return Entry(
        tenant=tenant,
        priority=2,
        lane=Lane(model),
        cost=100.0,
        nbytes=1,
        enqueued_at=0.0,
        expires_at=100.0,
        due=0.0,
    )


def test_a_router_tells_what_waits_at_it_and_what_it_has_served() -> None:
    here, rivals = queues(), Rivals()
    for tenant in ("a", "a", "b"):
        here.offer(entry(tenant), 0.0)
    heard = rivals.hear({"r1": told(here, 0.0)})
    assert heard.backlog == {(2, "a"): {Lane("m"): 2}, (2, "b"): {Lane("m"): 1}}
    assert heard.served == []
    taken = here.take({Lane("m"): ("e",)}, 0.0).entry
    assert taken is not None
    assert taken.charge is not None
    heard = rivals.hear({"r1": told(here, 0.0)})
    assert heard.backlog == {(2, "a"): {Lane("m"): 1}, (2, "b"): {Lane("m"): 1}}
    assert heard.served == [(2, "a", 100.0)]
    taken.charge.correct(40.0)
    assert rivals.hear({"r1": told(here, 0.0)}).served == [(2, "a", -60.0)]


def test_what_several_routers_have_is_summed_and_what_one_served_before_it_was_heard_is_past() -> None:
    one, two, rivals = queues(), queues(), Rivals()
    for each in (one, two):
        each.offer(entry("a"), 0.0)
        each.offer(entry("a", "other"), 0.0)
    one.take({Lane("m"): ("e",)}, 0.0)
    heard = rivals.hear({"r1": told(one, 0.0), "r2": told(two, 0.0)})
    assert heard.backlog == {(2, "a"): {Lane("m"): 1, Lane("other"): 2}}
    assert heard.served == []


def test_a_router_that_is_gone_has_nothing_waiting() -> None:
    here, rivals = queues(), Rivals()
    here.offer(entry("a"), 0.0)
    rivals.hear({"r1": told(here, 0.0)})
    assert rivals.hear({}) == ({}, [])


def test_nothing_is_told_of_idle_queues_nor_understood_of_what_is_none() -> None:
    assert told(queues(), 0.0) == b""
    assert Rivals().hear({"r1": b"\xc1"}) == ({}, [])


def test_no_more_tenants_are_told_than_others_can_take_in() -> None:
    here = queues()
    for number in range(200):
        here.offer(entry(f"t{number}"), 0.0)
    assert len(Rivals().hear({"r": told(here, 0.0)}).backlog) == 64
