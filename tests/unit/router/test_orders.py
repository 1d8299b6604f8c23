"""Orders of an administrator: in force until taken back, whatever comes and goes meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.admin import Order
from router.api.lifecycle import Lifecycle
from router.core import Health
from router.orders import InForce, Orders
from router.pool.pool import Pool
from router.pool.spec import EndpointSpec

A, B = EndpointSpec(url="http://a:1"), EndpointSpec(url="http://b:1")


@pytest.fixture
def pool() -> Pool:
    pool = Pool()
    pool.set_endpoints([A, B])
    return pool


def orders_on(pool: Pool) -> Orders:
    orders = Orders(pool, Lifecycle())
    pool.add_observer(orders)
    return orders


def drained(pool: Pool) -> set[str]:
    return {state.endpoint.id for state in pool.snapshot() if state.health is Health.DRAINING}


def test_an_endpoint_is_taken_out_and_back(pool: Pool) -> None:
    orders = orders_on(pool)
    assert orders.obey(Order("drain", "a:1")) == Order("drain", "a:1")
    assert (drained(pool), orders.in_force) == ({"a:1"}, InForce(("a:1",)))
    assert orders.obey(Order("resume", "a:1"))
    assert (drained(pool), orders.in_force) == (set(), InForce())


def test_an_unknown_endpoint_is_told_and_changes_nothing(pool: Pool) -> None:
    orders = orders_on(pool)
    assert orders.obey(Order("drain", "c:1")) is None
    assert orders.obey(Order("resume", "c:1")) is None
    assert orders.in_force == InForce()


def test_an_endpoint_that_leaves_and_comes_back_is_still_drained(pool: Pool) -> None:
    orders = orders_on(pool)
    orders.obey(Order("drain", "a:1"))
    pool.set_endpoints([B])
    pool.set_endpoints([A, B])
    assert drained(pool) == {"a:1"}


def test_an_order_can_be_taken_back_while_its_endpoint_is_away(pool: Pool) -> None:
    orders = orders_on(pool)
    orders.obey(Order("drain", "a:1"))
    pool.set_endpoints([B])
    assert orders.obey(Order("resume", "a:1"))
    pool.set_endpoints([A, B])
    assert drained(pool) == set()


def test_an_endpoint_that_only_a_sibling_knows_is_remembered(pool: Pool) -> None:
    orders = orders_on(pool)
    assert orders.obey(Order("drain", "c:1"), known=True)
    pool.set_endpoints([A, B, EndpointSpec(url="http://c:1")])
    assert drained(pool) == {"c:1"}


def test_the_router_itself_leaves_service_and_returns() -> None:
    lifecycle = Lifecycle()
    orders = Orders(Pool(), lifecycle)
    orders.obey(Order("drain"))
    assert lifecycle.out_of_service
    orders.obey(Order("resume"))
    assert not lifecycle.out_of_service


EVERY = st.builds(Order, st.sampled_from(["drain", "resume"]), st.sampled_from([None, "a:1", "b:1"]))


@given(st.lists(EVERY), st.lists(EVERY))
def test_whoever_restores_what_is_in_force_stands_where_its_sibling_stands(
    first: list[Order], others: list[Order]
) -> None:
    pools = [Pool(), Pool()]
    for pool in pools:
        pool.set_endpoints([A, B])
    told, late = map(orders_on, pools)
    for order in first:
        told.obey(order)
    for order in others:
        late.obey(order)
    late.restore(told.in_force)
    assert late.in_force == told.in_force
    assert drained(pools[0]) == drained(pools[1]) == set(told.in_force.endpoints)
