from __future__ import annotations

from router.core import Health
from router.pool.health import HealthPolicy
from router.pool.pool import Pool
from router.pool.reading import read_page
from router.pool.spec import EndpointSpec
from router.pool.stall import StallPolicy
from router.pool.stalls import Stalls
from tests.support.pool import page

NAMES = ("a:1", "b:1", "c:1")


class World:
    """Three engines; `requests` are ours, `working` those whose metrics move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.requests: dict[str, int] = {}
        self.heard: dict[str, float] = {}
        self.working: set[str] = set(NAMES)
        self.steps = 0
        self.pool = Pool(HealthPolicy(probes_up=1, probes_down=1), clock=lambda: self.now)
        self.pool.set_endpoints([EndpointSpec(url=f"http://{name}") for name in NAMES])
        for name in NAMES:
            self.pool.probe_ok(name)
        self.stalls = Stalls(
            self.pool,
            lambda name: self.requests.get(name, 0),
            lambda url: self.heard.get(url),
            clock=lambda: self.now,
            policy=StallPolicy(after_s=10.0, interval_s=1.0, most_s=40.0),
        )

    def pass_time(self, seconds: int, *, scraped: bool = True) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.steps += 1
            for name in NAMES if scraped else ():
                work = self.steps if name in self.working else 0
                self.pool.read_page(name, read_page(page() + f"vllm:generation_tokens_total {work}\n", self.now))
            self.stalls.look()

    def out(self) -> str:
        return "".join(s.endpoint.id[0] for s in self.pool.snapshot() if s.health is Health.UNHEALTHY)


def test_an_engine_that_has_requests_and_does_nothing_is_taken_out() -> None:
    world = World()
    world.working.discard("a:1")
    world.requests = {"a:1": 2, "b:1": 2}
    world.pass_time(10)
    assert world.out() == ""
    world.pass_time(2)
    assert world.out() == "a"


def test_bytes_moving_metrics_or_having_nothing_to_do_are_no_standstill() -> None:
    world = World()
    world.working -= {"a:1", "c:1"}
    world.requests = {"a:1": 1, "b:1": 1}
    for _ in range(30):
        world.heard["http://a:1"] = world.now
        world.pass_time(1)
    assert world.out() == ""


def test_without_metrics_nothing_is_said() -> None:
    world = World()
    world.working.clear()
    world.requests = {"a:1": 1}
    world.pass_time(60, scraped=False)
    assert world.out() == ""


def test_where_everybody_who_works_stands_still_nobody_is_taken_out() -> None:
    world = World()
    world.working.clear()
    world.requests = dict.fromkeys(NAMES, 3)
    world.pass_time(60)
    assert world.out() == ""


def test_a_process_that_stood_still_itself_blames_nobody() -> None:
    world = World()
    world.working.discard("a:1")
    world.requests = {"a:1": 2, "b:1": 2}
    world.pass_time(5)
    world.now += 100.0
    world.pass_time(8)
    assert world.out() == ""


def test_it_comes_back_on_trial_and_stays_out_longer_each_time() -> None:
    world = World()
    world.working.discard("a:1")
    world.requests = {"a:1": 1, "b:1": 1}
    outs = []
    for _ in range(200):
        world.pass_time(1)
        outs.append(world.out())
    spells = [len(spell) for spell in "".join("x" if out else " " for out in outs).split()]
    assert spells[:3] == [10, 20, 40]
    assert world.pool.snapshot()[0].on_trial or world.out() == "a"


def test_a_new_process_is_back_at_once() -> None:
    world = World()
    world.working.discard("a:1")
    world.requests = {"a:1": 1, "b:1": 1}
    world.pass_time(12)
    assert world.out() == "a"
    world.pool.read_page("a:1", read_page(page(start=2e9), world.now + 0.5))
    assert world.out() == ""
