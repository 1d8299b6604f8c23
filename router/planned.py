"""From settings to the planner at work: its parts, wired; none is started here."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import NamedTuple

import httpx

from router.capacity.demand import Objective, Qos
from router.capacity.engine_model import EngineModels
from router.capacity.misses import Misses
from router.capacity.plan import Rules
from router.capacity.startup import Startups
from router.capacity.traffic import Traffic
from router.capacity.variants import Variant, VariantError, read, serves
from router.core import InferenceRequest, Role
from router.errors import ConfigError
from router.inflight import InflightTracker
from router.plain_yaml import NotYaml, load
from router.planning.actuator import Actuator, DryRun, Published
from router.planning.listening import Listener
from router.planning.local import LocalEngines
from router.planning.pools import DEFAULT, Pools
from router.planning.service import Planning, PlanningOptions
from router.planning.solver import Solver
from router.planning.wake import Wake
from router.pool.discovery import Discovery
from router.pool.pool import Pool
from router.ports import Clock
from router.settings import CapacitySettings, Settings

_ANSWER_S = 1.0


class Planned(NamedTuple):
    planning: Planning
    wake: Wake
    listener: Listener
    startups: Startups
    discoveries: Mapping[str, Discovery]
    """Of engines that the actuator starts."""


def planned(
    settings: Settings,
    *,
    pool: Pool,
    engines: EngineModels,
    inflight: InflightTracker,
    routers: Callable[[], int],
    priority_of: Callable[[InferenceRequest], int],
    clock: Clock,
) -> Planned | None:
    """None where nobody plans. `routers`: how many see a share of the traffic. Raises `ConfigError`."""
    chosen = settings.capacity
    if not chosen.planner:
        return None
    variants = fitting(settings)
    pools, traffic, startups, misses = Pools(variants), Traffic(), Startups(), Misses()
    options = _options(chosen)
    actuator, discoveries = _actuator(chosen, variants, pool, inflight, clock)
    wake = Wake(most=chosen.max_held, wait_s=chosen.hold_s, pool_of=pools.of, knows=pools.knows, coming=actuator.coming)
    planning = Planning(
        options=options,
        solver=Solver(chosen.timeout_s),
        traffic=traffic,
        misses=misses,
        startups=startups,
        pools=pools,
        engines=engines,
        states=pool.snapshot,
        inflight=inflight.get,
        routers=routers,
        actuator=actuator,
        wake=wake,
        clock=clock,
        wall=time.time,
    )

    def qos_of(request: InferenceRequest) -> Qos:
        return Qos.BATCH if priority_of(request) < 0 else Qos.INTERACTIVE

    listener = Listener(
        traffic,
        startups,
        misses,
        objective=options.rules.objective,
        pool_of=pools.of,
        qos_of=qos_of,
        wall=time.time,
    )
    return Planned(planning, wake, listener, startups, discoveries)


def need_solver(what: str, find: Callable[[str], object | None] = importlib.util.find_spec) -> None:
    """Raises `ConfigError` where the packages that plans are made with are missing. `what`: what needs them."""
    for name in ("scipy", "numpy"):
        if find(name) is None:
            raise ConfigError(f"{what} needs {name}, which is not installed: pip install 'kvrouter[planner]'")


def fitting(settings: Settings) -> tuple[Variant, ...]:
    """The variants that there may be, none without a planner. Nothing is started.

    Raises `ConfigError` for settings that the planner could not be made of.
    """
    chosen = settings.capacity
    if not chosen.planner:
        return ()
    need_solver("capacity.planner")
    if settings.server.workers > 1:
        raise ConfigError("capacity.planner needs all traffic in one process: set server.workers to 1")
    variants = _variants(chosen)
    _check(chosen, variants)
    if chosen.actuator == "local":
        _command(chosen.local_command)
    return variants


def _check(chosen: CapacitySettings, variants: tuple[Variant, ...]) -> None:
    """What one setting says of another. Raises `ConfigError`."""
    if chosen.min_engines > chosen.max_engines:
        raise ConfigError(
            f"capacity.min_engines is {chosen.min_engines}, above capacity.max_engines, {chosen.max_engines}: "
            "raise the one or lower the other"
        )
    whole, apart = serves(variants, [Role.BOTH]), serves(variants, [Role.PREFILL, Role.DECODE])
    able = {"aggregated": whole, "disaggregated": apart}.get(chosen.form, whole or apart)
    if not able:
        needed = {"aggregated": "both", "disaggregated": "prefill and decode"}.get(
            chosen.form, "both, or prefill and decode"
        )
        raise ConfigError(f"capacity.variants_file: no variant has the role {needed}: give one to its roles")
    known = sorted({variant.hardware for variant in variants if variant.hardware})
    for hardware in chosen.quotas:
        if hardware not in known:
            raise ConfigError(
                f"capacity.quotas: no variant in capacity.variants_file has the hardware {hardware}: "
                f"{'it is one of ' + ', '.join(known) if known else 'give one that as its hardware'}"
            )


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    """Raises `ConfigError` for one that could not be filled in."""
    example = "like [kvrouter, sim, --port, '{port}', --role, '{role}']"
    if not words:
        raise ConfigError(f"capacity.local_command is empty: give the command that starts one engine, {example}")
    found: set[str] = set()
    for word in words:
        try:
            found |= {name for _, name, _, _ in Formatter().parse(word) if name is not None}
        except ValueError:
            raise ConfigError(
                f"capacity.local_command: {word}: write a brace that is meant as one as {{{{ or }}}}"
            ) from None
    strange = sorted(found - {"port", "role", "variant"})
    if strange:
        raise ConfigError(
            f"capacity.local_command: nothing is known by the name of {{{strange[0]}}}: "
            "it may hold {port}, {role} and {variant}"
        )
    if "port" not in found:
        raise ConfigError(
            f"capacity.local_command has no {{port}}, so engines would not know where to listen: {example}"
        )
    return words


def _options(chosen: CapacitySettings) -> PlanningOptions:
    return PlanningOptions(
        interval_s=chosen.interval_s,
        rules=Rules(
            objective=Objective(ttft_s=chosen.ttft_slo_s, tpot_s=chosen.tpot_slo_s, attainment=chosen.attainment_ratio),
            aggregated=chosen.form != "disaggregated",
            disaggregated=chosen.form in ("disaggregated", "either"),
            least=chosen.min_engines,
            most=chosen.max_engines,
            headroom=chosen.headroom_ratio,
            burst=chosen.burst_ratio,
            survive_failures=chosen.survive_failures,
            stabilization_s=chosen.stabilization_s,
            margin=chosen.margin_ratio,
            idle_s=chosen.idle_s,
            budget_s=chosen.budget_s,
        ),
        as_present=chosen.form == "present",
        quotas=chosen.quotas,
        stale_s=chosen.stale_s,
    )


def _variants(chosen: CapacitySettings) -> tuple[Variant, ...]:
    if chosen.variants_file is None:
        return (Variant(name=DEFAULT, confidence=0.0),)
    path = Path(chosen.variants_file)
    try:
        return read(load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"capacity.variants_file: {path} cannot be read ({error.strerror}): name a YAML file"
        ) from None
    except (UnicodeDecodeError, NotYaml) as error:
        raise ConfigError(f"capacity.variants_file: {path} is no YAML ({error}): mend the file") from None
    except VariantError as error:
        raise ConfigError(f"capacity.variants_file: {path}: {error}") from None


def _actuator(
    chosen: CapacitySettings, variants: tuple[Variant, ...], pool: Pool, inflight: InflightTracker, clock: Clock
) -> tuple[Actuator, Mapping[str, Discovery]]:
    match chosen.actuator:
        case "metrics":
            return Published(), {}
        case "dry-run":
            return DryRun(), {}
        case _:
            startups = {variant.name: variant.startup_s for variant in variants}
            local = LocalEngines(
                _command(chosen.local_command),
                pool=pool,
                answers=_healthy,
                busy=lambda name: inflight.get(name).requests,
                clock=clock,
                startup_s=lambda name: startups.get(name, 90.0),
            )
            return local, {"local engines": local}


async def _healthy(url: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False) as client:
            return (await client.get(f"{url}/health")).status_code == 200
    except httpx.TransportError:
        return False
