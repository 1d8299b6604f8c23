from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.flowcontrol.entries import Entry, Fate, Lane
from router.flowcontrol.limits import Limits, QueueLimits, Turns
from router.flowcontrol.lines import MOST_BYPASSED
from router.flowcontrol.queues import Queues

LANE = Lane("m")
OPEN = {LANE: ("a",)}
WIDE = Limits(10_000, 1 << 40)


def limits(
    total: Limits = WIDE,
    each_class: Limits = WIDE,
    *,
    classes: Mapping[int, Limits] = MappingProxyType({}),
    sheddable_share: float = 0.5,
) -> QueueLimits:
    return QueueLimits(total=total, each_class=each_class, classes=classes, sheddable_share=sheddable_share)


def entry(
    tenant: str = "t",
    priority: int = 0,
    *,
    lane: Lane = LANE,
    cost: float = 100.0,
    nbytes: int = 10,
    now: float = 0.0,
    due: float = 0.0,
    wait_s: float = 1000.0,
    prefers: tuple[str, ...] = (),
) -> Entry:
    return Entry(
        tenant=tenant,
        priority=priority,
        lane=lane,
        cost=cost,
        nbytes=nbytes,
        enqueued_at=now,
        expires_at=now + wait_s,
        due=due,
        prefers=prefers,
    )


def put(queues: Queues, *entries: Entry, now: float = 0.0) -> None:
    for each in entries:
        assert queues.offer(each, now).refusal is None


def drained(queues: Queues, open_: Mapping[Lane, Sequence[str]] = OPEN, now: float = 0.0) -> list[Entry]:
    taken = []
    while (turn := queues.take(open_, now)).entry is not None:
        taken.append(turn.entry)
    return taken


_actions = st.lists(
    st.one_of(
        st.tuples(
            st.just("offer"),
            st.sampled_from("xyz"),
            st.integers(-1, 2),
            st.integers(0, 40),
            st.floats(0.5, 6.0),
            st.sampled_from(["m", "n"]),
        ),
        st.tuples(st.just("take"), st.sampled_from([("m",), ("n",), ("m", "n")])),
        st.tuples(st.just("leave"), st.integers(0, 200)),
        st.tuples(st.just("pass time"), st.floats(0.0, 3.0)),
    ),
    max_size=80,
)


@given(_actions, st.sampled_from(["fcfs", "edf"]))
def test_whatever_happens_each_ends_once_and_no_limit_is_passed(
    actions: list[tuple[Any, ...]], ordering: Literal["fcfs", "edf"]
) -> None:
    bounds = limits(Limits(8, 120), Limits(6, 90), classes={1: Limits(3, 60)}, sheddable_share=0.5)
    queues = Queues(bounds, Turns(ordering=ordering))
    inside: list[Entry] = []
    ends: Counter[Entry] = Counter()
    now = 0.0
    for action, *arguments in actions:
        if action == "offer":
            tenant, priority, nbytes, wait_s, model = arguments
            new = entry(
                tenant,
                priority,
                lane=Lane(model),
                nbytes=nbytes,
                now=now,
                wait_s=wait_s,
                due=wait_s,
            )
            certain = queues.refuses(new.priority, new.tenant, new.nbytes)
            offered = queues.offer(new, now)
            assert certain is None or offered.refusal == certain
            ends.update(offered.evicted)
            if offered.refusal is None:
                inside.append(new)
        elif action == "take":
            (models,) = arguments
            turn = queues.take({Lane(model): ("a",) for model in models}, now)
            assert not turn.deferred
            if turn.entry is not None:
                assert turn.entry.lane.model in models
                assert turn.entry.fate is Fate.DISPATCHED
                ends[turn.entry] += 1
        elif action == "leave" and inside:
            gone = inside[arguments[0] % len(inside)]
            waited = gone.fate is Fate.QUEUED
            assert queues.leave(gone, now) == waited
            ends[gone] += waited
        else:
            now += arguments[0]
            ends.update(queues.expire(now))
        waiting = [known for known in inside if known.fate is Fate.QUEUED]
        assert all(ends[known] == (known.fate is not Fate.QUEUED) for known in inside)
        assert queues.requests == len(waiting) <= 8
        assert queues.nbytes == sum(known.nbytes for known in waiting) <= 120
        for known in queues.classes():
            own = [each for each in waiting if each.priority == known.priority]
            most = bounds.of(known.priority)
            assert (known.requests, known.nbytes) == (len(own), sum(each.nbytes for each in own))
            assert known.requests <= most.requests
            assert known.nbytes <= most.nbytes
        shed = [each for each in waiting if each.priority < 0]
        assert len(shed) <= 4
        assert sum(each.nbytes for each in shed) <= 60
        assert sum(queues.lanes.values()) == len(waiting)
    left = [known for known in inside if known.fate is Fate.QUEUED]
    assert set(drained(queues, {Lane("m"): ("a",), Lane("n"): ("a",)}, now)) == set(left)
    assert not queues.requests
    assert not queues.lanes


@given(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2),
    st.lists(st.integers(1, 3000), min_size=4, max_size=30),
    st.integers(0, 1000),
)
def test_tenants_that_keep_waiting_are_served_as_their_weights_whatever_requests_cost(
    weights: dict[str, float], costs: list[int], seed: int
) -> None:
    rng = random.Random(seed)
    queues = Queues(limits(), Turns(quantum=500, weights=weights))
    served: Counter[str] = Counter()
    for tenant in weights:
        put(queues, *(entry(tenant, cost=rng.choice(costs)) for _ in range(3)))
    target = 40 * max(costs) * len(weights)
    while sum(served.values()) < target:
        taken = queues.take(OPEN, 0.0).entry
        assert taken is not None and taken.charge is not None
        # Half of what is dispatched turns out to cost something else.
        actual = rng.choice(costs) if rng.random() < 0.5 else int(taken.cost)
        taken.charge.correct(actual)
        served[taken.tenant] += actual
        put(queues, entry(taken.tenant, cost=rng.choice(costs)))
    whole = sum(weights.values())
    slack = 4 * (max(costs) + 500 * max(weights.values()))
    for tenant, weight in weights.items():
        assert abs(served[tenant] - target * weight / whole) <= slack


@given(st.lists(st.tuples(st.integers(-2, 3), st.sampled_from("ab")), min_size=1, max_size=40))
def test_a_higher_priority_goes_first_and_equals_go_in_the_order_they_came(kinds: list[tuple[int, str]]) -> None:
    queues = Queues(limits(sheddable_share=1.0))
    entries = [entry(tenant, priority) for priority, tenant in kinds]
    put(queues, *entries)
    order = drained(queues)
    assert [each.priority for each in order] == sorted((each.priority for each in entries), reverse=True)
    for priority in {each.priority for each in entries}:
        for tenant in "ab":
            own = [each.number for each in order if (each.priority, each.tenant) == (priority, tenant)]
            assert own == sorted(own)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_under_edf_a_tenants_requests_go_by_when_they_are_due(dues: list[float]) -> None:
    queues = Queues(limits(), Turns(ordering="edf"))
    put(queues, *(entry(due=due, prefers=("b",) if due > 50 else ()) for due in dues))
    assert [each.due for each in drained(queues)] == sorted(dues)


def test_a_request_whose_prefix_lies_where_there_is_room_goes_before_one_whose_does_not() -> None:
    queues = Queues(limits())
    far, free, near = entry(prefers=("b",)), entry(), entry(prefers=("a",))
    put(queues, far, free, near)
    assert drained(queues) == [near, free, far]


def test_nobody_is_passed_over_for_ever() -> None:
    queues = Queues(limits())
    far = entry(prefers=("b",))
    put(queues, far, *(entry(prefers=("a",)) for _ in range(50)))
    assert drained(queues).index(far) == MOST_BYPASSED


def test_locality_decides_the_order_within_a_round_and_not_the_shares() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    put(queues, *(entry("near", prefers=("a",)) for _ in range(40)), *(entry("far", prefers=("b",)) for _ in range(40)))
    first = Counter(each.tenant for each in drained(queues)[:40])
    assert first == {"near": 20, "far": 20}


def test_a_lane_without_room_does_not_hold_up_another() -> None:
    queues = Queues(limits())
    blocked, goes = entry(priority=5, lane=Lane("full")), entry()
    put(queues, blocked, goes)
    assert drained(queues) == [goes]
    assert blocked.fate is Fate.QUEUED


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    put(queues, entry("a"))
    drained(queues)
    put(queues, *(entry("b") for _ in range(100)))
    for _ in range(50):
        queues.take(OPEN, 0.0)
    put(queues, *(entry("a") for _ in range(100)))
    taken = [queues.take(OPEN, 0.0).entry for _ in range(20)]
    went = Counter(each.tenant for each in taken if each is not None)
    assert went.total() == 20
    assert 9 <= went["a"] <= 11


def test_when_full_a_higher_class_takes_the_room_of_the_newest_of_the_lowest() -> None:
    queues = Queues(limits(Limits(3, 1000), sheddable_share=1.0))
    old, new, ordinary = entry(priority=-1), entry(priority=-1), entry()
    put(queues, old, new, ordinary)
    offered = queues.offer(entry(priority=1), 0.0)
    assert (offered.refusal, offered.evicted) == (None, [new])
    assert new.fate is Fate.EVICTED


def test_when_a_class_is_full_the_tenant_with_most_waiting_for_its_weight_gives_way() -> None:
    queues = Queues(limits(each_class=Limits(6, 1000)), Turns(weights={"heavy": 5.0}))
    put(queues, *(entry("heavy") for _ in range(3)), *(entry("greedy") for _ in range(3)))
    assert queues.offer(entry("greedy"), 0.0).refusal == "full"
    assert queues.refuses(0, "greedy", 1) == "full"
    (evicted,) = queues.offer(entry("new"), 0.0).evicted
    assert evicted.tenant == "greedy"


def test_a_tenant_with_most_of_a_nearly_full_queue_is_refused_so_that_nobody_need_be_put_out_for_others() -> None:
    queues = Queues(limits(each_class=Limits(100, 10_000)), Turns(weights={"b": 3.0}))
    evicted = 0
    for number in range(2000):
        for tenant in "ab":
            evicted += len(queues.offer(entry(tenant), 0.0).evicted)
        if number % 3 == 0:
            queues.take(OPEN, 0.0)
    (known,) = queues.classes()
    held = {line.account.tenant: line.requests for line in known.lines()}
    assert known.requests >= 90
    assert 2 * held["a"] <= held["b"]
    assert evicted <= 5
    put(queues, entry("new"))


def test_sheddable_requests_are_refused_while_others_still_find_room() -> None:
    queues = Queues(limits(Limits(4, 1000), sheddable_share=0.5))
    put(queues, entry(priority=-1), entry(priority=-1))
    assert queues.offer(entry(priority=-1), 0.0).refusal == "shed"
    put(queues, entry())


def test_a_body_beyond_the_limit_never_waits() -> None:
    assert Queues(limits(Limits(4, 1000))).offer(entry(nbytes=1001), 0.0).refusal == "too-large"


def test_one_tenants_large_bodies_do_not_put_out_anothers_small_ones() -> None:
    queues = Queues(limits(each_class=Limits(100, 1000)))
    put(queues, *(entry("small", nbytes=50) for _ in range(4)), *(entry("large", nbytes=400) for _ in range(2)))
    assert queues.offer(entry("large", nbytes=400), 0.0).refusal == "full"


@pytest.mark.parametrize(("rate", "waiting", "expected"), [(10, 100, 11), (100, 50, 1), (1, 500, 120)])
def test_retry_after_is_what_the_queue_takes_to_drain(rate: int, waiting: int, expected: int) -> None:
    queues = Queues(limits())
    put(queues, *(entry() for _ in range(waiting + 10 * rate)))
    for number in range(10 * rate):
        queues.take(OPEN, number / rate)
    assert queues.retry_after_s(0, 10.0, 30.0) == expected


def test_retry_after_counts_what_goes_first_and_is_the_longest_wait_while_nothing_moves() -> None:
    queues = Queues(limits())
    put(queues, *(entry() for _ in range(50)), entry(priority=3))
    assert queues.ahead_of(3) == 1
    assert queues.ahead_of(0) == 51
    assert queues.retry_after_s(0, 1.0, 30.0) == 30


def test_a_turn_that_is_anothers_is_left_to_it() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    put(queues, *(entry("a") for _ in range(10)))
    queues.heard({(1, "urgent"): {LANE: 3}}, 0.0)
    assert queues.take(OPEN, 0.0) == (None, True)
    assert queues.take(OPEN, 0.0, alone=True).entry is not None
    queues.heard({(1, "urgent"): {Lane("other"): 3}}, 0.0)
    assert queues.take(OPEN, 0.0).entry is not None
    queues.heard({}, 0.0)
    assert queues.take(OPEN, 0.0).entry is not None


def test_tenants_at_other_routers_have_their_turns() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    put(queues, *(entry("a") for _ in range(50)))
    queues.heard({(0, "b"): {LANE: 50}}, 0.0)
    taken = deferred = 0
    while taken < 40:
        turn = queues.take(OPEN, 0.0)
        if turn.entry is None:
            assert turn.deferred
            deferred += 1
            queues.charged_elsewhere(0, "b", 100.0)
        else:
            taken += 1
    assert 35 <= deferred <= 42


def test_idle_tenants_are_forgotten() -> None:
    queues = Queues(limits())
    put(queues, *(entry(f"t{number}") for number in range(100)))
    drained(queues)
    queues.expire(1000.0)
    assert list(queues.classes()) == []


def test_lower_limits_put_nobody_out_and_refuse_until_there_is_room() -> None:
    queues = Queues(limits(Limits(10, 10_000)))
    waiting = [entry() for _ in range(10)]
    for each in waiting:
        assert queues.offer(each, 0.0).refusal is None
    queues.apply(limits(Limits(4, 10_000)), Turns())
    assert all(each.fate is Fate.QUEUED for each in waiting)
    assert queues.offer(entry(), 0.0).refusal == "full"
    for _ in range(6):
        queues.take(OPEN, 0.0)
    assert queues.offer(entry(), 0.0).refusal == "full"
    queues.take(OPEN, 0.0)
    assert queues.offer(entry(), 0.0).refusal is None


def test_beyond_lowered_limits_who_is_entitled_to_more_takes_one_place_and_not_all() -> None:
    queues = Queues(limits(Limits(10, 10_000)))
    for _ in range(10):
        queues.offer(entry(nbytes=100), 0.0)
    queues.apply(limits(Limits(2, 200)), Turns())
    offered = queues.offer(entry(priority=5, nbytes=150), 0.0)
    assert (offered.refusal, len(offered.evicted), queues.requests) == (None, 2, 9)


def test_changed_weights_count_for_those_that_wait() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    for tenant in ("a", "b") * 40:
        queues.offer(entry(tenant=tenant, cost=100.0), 0.0)
    queues.apply(limits(), Turns(quantum=100, weights={"b": 3.0}))
    went = [each.tenant for each in drained(queues)][:40]
    assert went.count("b") == pytest.approx(30, abs=1)


def test_a_changed_quantum_is_what_rounds_give_from_then_on() -> None:
    queues = Queues(limits(), Turns(quantum=100))
    for tenant in ("a", "b") * 8:
        queues.offer(entry(tenant=tenant, cost=100.0), 0.0)
    queues.apply(limits(), Turns(quantum=400))
    assert "".join(each.tenant for each in drained(queues)) in ("aaaabbbbaaaabbbb", "bbbbaaaabbbbaaaa")


@pytest.mark.parametrize("ordering", ["fcfs", "edf"])
def test_a_changed_ordering_orders_what_waits_already(ordering: str) -> None:
    before, after = (Turns(ordering=each) for each in (("edf", "fcfs") if ordering == "fcfs" else ("fcfs", "edf")))
    queues = Queues(limits(), before)
    first, second, third = entry(due=30.0), entry(due=20.0), entry(due=10.0)
    for each in (first, second):
        queues.offer(each, 0.0)
    queues.apply(limits(), after)
    queues.offer(third, 0.0)
    went = [queues.take(OPEN, 0.0).entry for _ in range(3)]
    assert went == ([first, second, third] if ordering == "fcfs" else [third, second, first])
    assert (queues.requests, queues.nbytes) == (0, 0)


_LIMITS = st.builds(
    lambda requests, nbytes, share: limits(Limits(requests, nbytes), Limits(requests, nbytes), sheddable_share=share),
    st.integers(1, 12),
    st.integers(10, 200),
    st.sampled_from([0.0, 0.5, 1.0]),
)
_TURNS = st.builds(
    lambda ordering, weight: Turns(quantum=100, ordering=ordering, weights={"x": weight}),
    st.sampled_from(["fcfs", "edf"]),
    st.sampled_from([0.5, 1.0, 3.0]),
)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("offer"), st.sampled_from("xyz"), st.integers(-1, 2), st.integers(0, 40)),
            st.tuples(st.just("apply"), _LIMITS, _TURNS),
            st.tuples(st.just("take")),
        ),
        max_size=60,
    )
)
def test_whatever_the_limits_become_nobody_is_lost_and_a_newcomer_takes_no_more_than_its_room(
    actions: list[tuple[Any, ...]],
) -> None:
    queues = Queues(limits(Limits(8, 120), Limits(6, 90)))
    inside: list[Entry] = []
    for number, (action, *arguments) in enumerate(actions):
        if action == "offer":
            tenant, priority, nbytes = arguments
            new = entry(tenant, priority, nbytes=nbytes, due=float(-number))
            offered = queues.offer(new, 0.0)
            if offered.refusal is None:
                inside.append(new)
            *others, last = offered.evicted or [new]
            assert sum(each.nbytes for each in others) < max(new.nbytes, 1) or not others
            assert all(each.fate is Fate.EVICTED for each in offered.evicted)
            assert last is new or last.fate is Fate.EVICTED
        elif action == "apply":
            before = queues.requests
            queues.apply(*arguments)
            assert queues.requests == before
        else:
            queues.take(OPEN, 0.0)
        waiting = [each for each in inside if each.fate is Fate.QUEUED]
        assert (queues.requests, queues.nbytes) == (len(waiting), sum(each.nbytes for each in waiting))
    left = {each for each in inside if each.fate is Fate.QUEUED}
    assert set(drained(queues)) == left
    assert (queues.requests, queues.nbytes) == (0, 0)
