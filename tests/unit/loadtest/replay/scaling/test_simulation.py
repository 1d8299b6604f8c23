from __future__ import annotations

from collections.abc import Callable, Mapping

from loadtest.replay.policies.catalogue import find
from loadtest.replay.results import Run
from loadtest.replay.scaling.base import Seen
from loadtest.replay.scaling.simulation import Ledger, ScalingSimulation
from loadtest.replay.simulation import Conditions
from loadtest.replay.workload import Request
from router.core import Role
from router.observability.events import Observer, Outcome
from tests.support.replay import ask, fleet, member, workload


class Scripted:
    interval_s = 10.0
    observer: Observer | None = None

    def __init__(self, wanted: Callable[[Seen], int], *roles: Role) -> None:
        self._wanted, self._roles = wanted, roles or (Role.BOTH,)
        self.seen: list[Seen] = []

    def desired(self, seen: Seen) -> Mapping[Role, int]:
        self.seen.append(seen)
        return dict.fromkeys(self._roles, self._wanted(seen))


def day(
    law: Scripted,
    *requests: Request,
    startup_s: float = 20.0,
    batch: tuple[int, ...] = (),
    roles: tuple[Role, ...] = (),
) -> tuple[Run, Ledger]:
    members = [member(f"e{n}", role) for n, role in enumerate(roles or (Role.BOTH,))]
    simulation = ScalingSimulation(
        workload(*requests),
        find("least-requests"),
        fleet(*members),
        Conditions(),
        law,
        seed=1,
        startup_s=startup_s,
        batch=batch,
    )
    return simulation.run(), simulation.ledger()


def steady(count: int, every: float, **more: int) -> list[Request]:
    return [ask(n, n * every, [n], **more) for n in range(count)]


def test_an_engine_serves_after_its_start_up_and_is_paid_from_the_order_on() -> None:
    run, ledger = day(Scripted(lambda _: 2), *steady(60, 1.0))
    serving = [step for step in ledger.steps if step.ready == 2]
    assert serving[0].at == 30.0
    assert ledger.engine_s == run.ended_s + (run.ended_s - 10.0)
    assert {result.endpoint for result in run.results if result.at > 30.0} == {"e0", "e1"}


def test_a_scale_in_cuts_nothing_and_ends_when_the_engine_is_empty() -> None:
    long = [ask(0, 0.0, [0], output=6000), ask(1, 0.1, [1], output=6000)]
    law = Scripted(lambda _: 1)
    members = (Role.BOTH, Role.BOTH)
    run, ledger = day(law, *long, *[ask(n, 100.0 + n, [n]) for n in range(2, 30)], roles=members)
    assert all(result.outcome is Outcome.OK for result in run.results)
    gone = next(step.at for step in ledger.steps if step.total == 1)
    assert gone >= max(result.e2e_s for result in run.results[:2]) or gone >= 40.0
    assert len({result.endpoint for result in run.results if result.at > 100.0}) == 1


def test_requests_wait_for_the_first_engine_and_none_is_lost() -> None:
    law = Scripted(lambda seen: 0 if seen.now < 60.0 else 1)
    run, ledger = day(law, ask(0, 0.0, [0]), *[ask(n, 50.0 + n, [n]) for n in range(1, 10)])
    assert ledger.held > 0
    assert [result.outcome for result in run.results] == [Outcome.OK] * 10
    assert max(seen.held for seen in law.seen) > 0
    waited = [result.ttft_s for result in run.results if result.at > 40.0 and result.ttft_s is not None]
    assert max(waited) < 35.0


def test_an_order_taken_back_while_it_starts_is_paid_only_until_then() -> None:
    law = Scripted(lambda seen: 2 if seen.now == 10.0 else 1)
    run, ledger = day(law, *steady(60, 1.0), startup_s=90.0)
    assert ledger.engine_s == run.ended_s + 10.0
    assert max(step.ready for step in ledger.steps) == 1


def test_batch_gives_way_while_engines_are_busy() -> None:
    crowd = [ask(n, 1.0, range(100 * n, 100 * n + 60), output=2) for n in range(8)]
    batch = ask(8, 1.0, range(5000, 5060), output=2)
    run, _ = day(Scripted(lambda _: 1), *crowd, batch, batch=(8,))
    assert run.results[-1].number == 8


def test_roles_are_followed_apart() -> None:
    roles = (Role.PREFILL, Role.DECODE)
    law = Scripted(lambda _: 2, *roles)
    run, ledger = day(law, *[ask(n, float(n), [2 * n, 2 * n + 1]) for n in range(80)], roles=roles)
    assert max(step.ready for step in ledger.steps) == 4
    assert all(result.outcome is Outcome.OK for result in run.results)
    assert all(result.prefill_endpoint is not None for result in run.results)
