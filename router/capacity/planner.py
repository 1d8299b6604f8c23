"""Planner: from demand and fleet to plans, cycle after cycle: hysteresis, zero, make before break, and the why. PURE.

Each cycle the present fleet is judged by the performance law against the forecast with its error and headroom. If it
does not suffice, the programme says what does, and that is asked for at once; nothing is drained in the same breath.
If it does, the programme says what would suffice for a demand larger by the dead band and by what chance may bring back
(`router.capacity.past`), with the caches that a scale-in loses gone cold; the greatest such plan of the stabilization
window is what is scaled in to. Plans follow from what was given alone: nothing in them depends on how long they took.

Fails safe: no fresh demand holds what is there; a solver that finds nothing holds too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from router.capacity.budget import Budget
from router.capacity.explanation import Scarce, explained, held
from router.capacity.judgement import Judged, judge
from router.capacity.need import Need, Solution, Unsolved
from router.capacity.past import Past
from router.capacity.performance import Law
from router.capacity.plan import Action, Key, Plan, PoolView, cost_of
from router.capacity.programme import solve, used
from router.capacity.rationing import rationed
from router.capacity.resting import below_least, least_of, quiet, resting, woken, zero
from router.capacity.standing import Standing, steadied
from router.capacity.variants import Variant
from router.core import Role

_QUIET = 1e-3
"""Requests a second that are as good as none."""


class Planner:
    """Keeps what hysteresis needs of each pool, bounded; everything else comes with each call."""

    def __init__(self) -> None:
        self._past: dict[str, Past] = {}
        self._standing: dict[str, Standing] = {}
        self._budgets: dict[str, Budget] = {}

    def plan(self, now: float, views: Sequence[PoolView], quotas: Mapping[str, int] | None = None) -> list[Plan]:
        """One plan for each view, in order. `now`: seconds of any clock that does not stand still."""
        names = {view.name for view in views}
        for kept in (self._past, self._standing, self._budgets):
            for name in kept.keys() - names:
                del kept[name]
        plans: dict[str, Plan] = {}
        judged: list[Judged] = []
        for view in views:
            simple = self._simple(view, now)
            if simple is not None:
                plans[view.name] = simple
            else:
                judged.append(judge(view, self._ease(view, now)))
        needs = [_need(one, self._banded(one, now)) for one in judged]
        try:
            solutions = solve(needs, quotas or {})
        except Unsolved as error:
            solutions = self._rationed(needs, quotas or {}, str(error), judged, plans)
        for one, need, solution in zip(judged, needs, solutions, strict=True):
            if one.view.name not in plans:
                plans[one.view.name] = self._decided(now, one, need, solution, quotas or {}, needs, solutions)
        return [plans[view.name] for view in views]

    def _ease(self, view: PoolView, now: float) -> float:
        rules = view.rules
        if not rules.budget_s or rules.burst > 1.0:
            # Room for a burst is seldom used, and no miss tells that it lacks.
            return 0.0
        budget = self._budgets.setdefault(view.name, Budget())
        return budget.ease(now, view.record, rules.objective.attainment, rules.budget_s)

    def _banded(self, one: Judged, now: float) -> float:
        """The rate to plan for: what must be carried, and where that is, what a scale-in must leave engines for."""
        past = self._past.setdefault(one.view.name, Past())
        work_s = sum(one.sizings[role].work_s for role in one.form.roles if role in one.sizings)
        # What a forecast did not know is no load that could come back: a pool's first minutes know little.
        expected = one.rate / (1.0 + one.doubt)
        past.loaded(now, expected, work_s, one.view.rules.stabilization_s, one.demand.falling_s)
        if one.view.name in self._budgets:
            self._budgets[one.view.name].loaded(one.demand.rate * work_s)
        if not one.suffices:
            return one.rate
        lasting = past.lasting(expected, work_s, one.demand.chance) * (1.0 + one.doubt)
        # What is left after a scale-in must do for more than is expected now, with colder caches.
        return max(lasting, one.rate * (1.0 + one.view.rules.margin + past.regret(now))) * _cold(one)

    # Without the programme

    def _simple(self, view: PoolView, now: float) -> Plan | None:
        """Nothing known, nothing asked for, or nothing there."""
        present = view.fleet.present
        if view.demand is None:
            if view.name in self._past:
                self._past[view.name].unseen()
            return held(view, "stale", "nothing fresh is known of its traffic: what is there stays")
        if not view.variants:
            return held(view, "no_variant", "no variant of engine is known that could be started")
        wanted = view.demand.rate > _QUIET or view.demand.held > 0 or any(s.rate > _QUIET for s in view.demand.batch)
        # A forecast remembers for longer than a pool may be told to wait.
        idle = view.rules.least == 0 and view.idle_s is not None and view.idle_s >= view.rules.idle_s
        if wanted and (view.demand.held > 0 or not idle):
            if view.demand.rate > _QUIET or view.demand.batch:
                return None
            return self._woken(view, now)
        if view.rules.least == 0 and not sum(present.values()):
            words = (
                self._standing[view.name].words(now, view.rules.stabilization_s) if view.name in self._standing else ()
            )
            return woken(view) if words else held(view, "idle", "nobody asks for it")
        if idle:
            self._past.pop(view.name, None)
            self._standing.pop(view.name, None)
            return zero(view)
        if below_least(view):
            return woken(view)
        # A pool that somebody asks for now and then has been doing with less in between, too.
        desired = least_of(view)
        past = self._past.setdefault(view.name, Past())
        past.suffices(now, cost_of(view, desired), desired, view.rules.stabilization_s)
        return self._quiet(view, now)

    def _quiet(self, view: PoolView, now: float) -> Plan:
        """Without traffic too, what was said stands."""
        standing = self._standing.setdefault(view.name, Standing())
        stays = standing.staying(view.fleet.present)
        if stays is not None:
            return resting(view, Action.IN, "quiet", stays, "no traffic, and less was enough before")
        words = standing.words(now, view.rules.stabilization_s)
        more = max(words, key=lambda counts: cost_of(view, counts), default={})
        desired = {key: max(n, more.get(key, 0)) for key, n in {**more, **view.fleet.present}.items()}
        if sum(desired.values()) > sum(view.fleet.present.values()):
            why = f"more was asked for within the last {view.rules.stabilization_s:g} s, which stands for so long"
            return resting(view, Action.OUT, "standing", desired, why)
        plan = quiet(view)
        if plan.action is Action.IN:
            standing.let_go(plan.present, plan.desired)
        return plan

    def _woken(self, view: PoolView, now: float) -> Plan:
        plan = woken(view)
        if plan.action is Action.WAKE:
            self._standing.setdefault(view.name, Standing()).asked(now, plan.desired)
        return plan

    # With it

    def _rationed(
        self,
        needs: Sequence[Need],
        quotas: Mapping[str, int],
        error: str,
        judged: Sequence[Judged],
        plans: dict[str, Plan],
    ) -> list[Solution | None]:
        """No plan for all together: pools that suffice keep what they need of what they have, the others share out what
        that leaves."""
        solutions: dict[str, Solution | None] = {}
        kept = [_as_is(one) for one in judged]
        for place, (one, need) in enumerate(zip(judged, needs, strict=True)):
            if not one.suffices:
                continue
            found = _fitting(need, quotas)
            # What a pool keeps without a plan takes its part of the quota too.
            solutions[need.pool] = found or kept[place]
            if found is None:
                plans[need.pool] = held(one.view, "quota", f"{error}: what is there stays")
            elif all(count <= one.present.get(key, 0) for key, count in found.counts.items()):
                kept[place] = found
        left = {hardware: quota - used(hardware, needs, kept) for hardware, quota in quotas.items()}
        short = [one for one in judged if not one.suffices]
        for one, solution in zip(short, rationed(short, left), strict=True):
            solutions[one.view.name] = solution
        return [solutions[need.pool] for need in needs]

    def _decided(
        self,
        now: float,
        one: Judged,
        need: Need,
        solution: Solution | None,
        quotas: Mapping[str, int],
        needs: Sequence[Need],
        solutions: Sequence[Solution | None],
    ) -> Plan:
        view = one.view
        left = {hardware: quota - used(hardware, needs, solutions) for hardware, quota in quotas.items()}
        if solution is None:
            # The bounds allow no plan that suffices: as much as they allow.
            beside = {hardware: free - used(hardware, [need], [_as_is(one)]) for hardware, free in left.items()}
            solution = rationed([one], beside)[0]
            left = {hardware: free - used(hardware, [need], [solution]) for hardware, free in left.items()}
        scarce = Scarce(
            full=[hardware for hardware, free in left.items() if free < _least_size(hardware, view.variants)],
            room={hardware: free + used(hardware, [need], [solution]) for hardware, free in left.items()},
        )
        past = self._past[view.name]
        standing = self._standing.setdefault(view.name, Standing())
        words = standing.words(now, view.rules.stabilization_s)
        if not one.suffices:
            past.scaled_out(now, one.rate)
            needed = _more(one, solution)
            standing.asked(now, needed)
            desired = steadied(one, needed, words, left)
            action = Action.OUT if sum(desired.values()) > sum(one.present.values()) else Action.HOLD
            return explained(one, desired, action, "demand", scarce)
        stays = standing.enough(one)
        if stays is not None:
            return explained(one, stays, Action.IN, "cheaper", scarce)
        past.suffices(now, solution.cost, solution.counts, view.rules.stabilization_s)
        there = dict(one.present)
        desired = steadied(one, there, words, left)
        if sum(desired.values()) > sum(there.values()):
            return explained(one, desired, Action.OUT, "standing", scarce)
        greatest = past.greatest()
        if greatest.cost >= cost_of(view, one.present) - 1e-9:
            return explained(one, there, Action.HOLD, "sufficient", scarce)
        known_s = past.known_s(now)
        if known_s < view.rules.stabilization_s:
            return explained(one, there, Action.HOLD, "stabilizing", scarce, known_s)
        target = greatest.counts
        if any(count > one.present.get(key, 0) for key, count in target.items()):
            desired = {key: max(target.get(key, 0), one.present.get(key, 0)) for key in {*target, *one.present}}
            standing.asked(now, desired)
            return explained(one, desired, Action.MIXED, "cheaper", scarce)
        if view.fleet.starting:
            return explained(one, there, Action.HOLD, "starting", scarce)
        past.scaled_in(now, one.rate)
        standing.let_go(one.present, target)
        return explained(one, dict(target), Action.IN, "cheaper", scarce)


def _need(one: Judged, rate: float) -> Need:
    view, rules, demand = one.view, one.view.rules, one.demand
    batch = sum(shape.rate for shape in demand.batch)
    whole: dict[Role, list[float]] = {}
    if batch > 0.0:
        shapes = [*demand.shapes, *demand.batch]
        for role in one.sizings:
            law = Law(view.variants, role, shapes, rules.objective)
            whole[role] = [float(value) for value in law.capacities([1], 0.0).stable[:, 0]]
    each = {variant.name: variant.cost_per_hour / rules.lasting_s for variant in view.variants}
    startup = {variant.name: variant.startup_s for variant in view.variants}
    warm = {variant.name: _warm_s(one, variant) for variant in view.variants}
    return Need(
        pool=view.name,
        sizings=one.sizings,
        rate=rate,
        survive_rate=demand.rate if rules.survive_failures else 0.0,
        total_rate=1.05 * (demand.rate + batch) if batch > 0.0 else 0.0,
        whole=whole,
        present=one.present,
        least=max(rules.least, 1),
        most=rules.most,
        start_cost={name: each[name] * startup[name] for name in each},
        drain_cost={name: each[name] * (0.5 * startup[name] + warm[name]) for name in each},
        switch_cost=0.05 * cost_of(view, one.present),
        form=one.form if one.present else None,
        # While there is too little, nothing is exchanged: an exchange is planned from what suffices.
        floor={} if one.suffices else {key: n for key, n in one.present.items() if key[0] in one.form.roles},
    )


def _warm_s(one: Judged, variant: Variant) -> float:
    """Engine time that it takes to compute again what the caches of one engine gave."""
    shapes = one.demand.shapes
    prompts = sum(shape.rate * (shape.new_tokens + shape.cached_tokens) for shape in shapes)
    cached = sum(shape.rate * shape.cached_tokens for shape in shapes)
    return cached / prompts * variant.kv_tokens * variant.laws.token_s if prompts > 0.0 else 0.0


def _cold(one: Judged) -> float:
    """By how much more there is to compute, for a time, when one engine's share of what caches give is lost."""
    engines = sum(one.present.values())
    if not engines:
        return 1.0
    colder = one.demand.colder(1.0 / engines)
    now = sum(shape.rate * shape.new_tokens for shape in one.demand.shapes)
    then = sum(shape.rate * shape.new_tokens for shape in colder.shapes)
    return min(then / now, 1.5) if now > 0 else 1.0


def _more(one: Judged, solution: Solution) -> dict[Key, int]:
    """What is there and what is missing: nothing goes while there is too little."""
    return {
        key: count
        for key in {*solution.counts, *one.present}
        if (count := max(solution.counts.get(key, 0), one.present.get(key, 0)))
    }


def _fitting(need: Need, quotas: Mapping[str, int]) -> Solution | None:
    try:
        return solve([need], quotas)[0]
    except Unsolved:
        return None


def _as_is(one: Judged) -> Solution:
    return Solution(form=one.form, counts=dict(one.present), cost=cost_of(one.view, one.present))


def _least_size(hardware: str, variants: Sequence[Variant]) -> int:
    """Accelerators of that kind that one engine more takes at the least."""
    return min((variant.accelerators for variant in variants if variant.hardware == hardware), default=1)
