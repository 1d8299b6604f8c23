from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from loadtest.replay.scaling.days import DAYS, make_day
from loadtest.replay.scaling.needs import needs
from loadtest.replay.scaling.plan_cli import Asked, as_json, objective, quotas, report, show, variants
from loadtest.replay.workload import Workload
from router.capacity.demand import Objective
from router.capacity.plan import Rules
from router.core import Role
from router.errors import ConfigError
from tests.support.planning import variant
from tests.support.replay import SIZE, ask


def growing() -> Workload:
    requests = [ask(n, 30.0 * n, range(900 * n, 900 * n + 125), output=200) for n in range(20)]
    requests += [ask(n, 600.0 + 0.1 * n, range(900 * n, 900 * n + 125), output=200) for n in range(20, 3000)]
    return Workload(name="growing", block_size=SIZE, requests=requests)


def test_more_traffic_needs_more_and_following_costs_less_than_the_peak_all_day() -> None:
    found = needs(growing(), [variant()], Rules(), 300.0)
    totals = [one.plan.total for one in found.slices]
    assert totals[0] == 1
    assert totals[-1] > totals[0]
    assert found.following() < found.fixed([variant()])


def test_a_day_is_paid_for_until_its_last_request_and_not_until_its_slice_is_over() -> None:
    requests = [ask(n, float(n), range(900 * n, 900 * n + 125), output=200) for n in range(700)]
    day = Workload(name="day", block_size=SIZE, requests=requests)
    found = needs(day, [variant(cost_per_hour=1.0)], Rules(), 600.0)
    assert [one.seconds for one in found.slices] == [600.0, 99.0]
    assert found.fixed([variant()]) == pytest.approx(699.0 / 3600.0 * found.slices[0].plan.total)
    whole = needs(day, [variant(cost_per_hour=1.0)], Rules(), 699.0)
    assert whole.hours == pytest.approx(found.hours, rel=0.1)


def test_bounds_form_and_quotas_are_kept() -> None:
    mine = [variant(hardware="h100")]
    asked = Asked(traces=["day:steady"], objective=Objective(), variants=mine, slice_s=1800.0, form="aggregated")

    def engines(**more: object) -> dict[tuple[Role, str], int]:
        return dict(report(msgspec.structs.replace(asked, **more)).needs.slices[0].plan.desired)

    free = engines()[Role.BOTH, "big"]
    assert engines(least=free + 2)[Role.BOTH, "big"] == free + 2
    assert engines(most=free - 1)[Role.BOTH, "big"] == free - 1
    assert engines(quotas={"h100": free - 1})[Role.BOTH, "big"] == free - 1
    assert {role for role, _ in engines(form="disaggregated")} == {Role.PREFILL, Role.DECODE}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"form": "split"}, "--form split: it is one of"),
        ({"form": "disaggregated", "variants": [variant(roles=(Role.BOTH,))]}, "the role prefill and decode"),
        ({"least": 3, "most": 2}, "--min 3 and --max 2"),
        ({"quotas": {"tpu": 3}}, "--quota tpu: no variant has that hardware: it is one of h100"),
        ({"block_size": 16}, "--block-size: day:steady has its own"),
    ],
)
def test_what_cannot_be_planned_is_said_so(changed: dict[str, object], why: str) -> None:
    asked = Asked(traces=["day:steady"], objective=Objective(), variants=[variant(hardware="h100")])
    with pytest.raises(ConfigError, match=why):
        report(msgspec.structs.replace(asked, **changed))


def test_a_quota_is_read() -> None:
    assert quotas(["h100=64", "a=b=2"]) == {"h100": 64, "a=b": 2}
    for text in ("h100", "h100=", "=3", "h100=-1", "h100=1.5"):
        with pytest.raises(ConfigError, match="like h100=64"):
            quotas([text])


def test_an_objective_out_of_reach_is_told_of(tmp_path: Path) -> None:
    asked = Asked(traces=["day:steady"], objective=Objective(ttft_s=0.07), variants=[variant()], slice_s=3600.0)
    console = Console(width=160, file=io.StringIO())
    show(report(asked), console)
    assert "most requests miss the objective with any number" in console.file.getvalue()  # type: ignore[attr-defined]


def test_shared_prefixes_lower_the_need() -> None:
    own = Workload(
        name="own", block_size=SIZE, requests=[ask(n, 0.1 * n, range(900 * n, 900 * n + 250)) for n in range(1500)]
    )
    shared = Workload(name="shared", block_size=SIZE, requests=[ask(n, 0.1 * n, range(250)) for n in range(1500)])
    apart, together = (needs(each, [variant()], Rules(), 150.0).slices[0] for each in (own, shared))
    assert together.cached_share > 0.9 > 0.1 > apart.cached_share
    assert together.plan.total < apart.plan.total


def test_the_answer_is_a_table_and_the_same_as_json(tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    lines = "\n".join(f"{n / 5},{2000},{150}" for n in range(600))
    trace.write_text(f"arrival_s,input_length,output_length\n{lines}\n")
    both = [variant("a", cost_per_hour=5.0), variant("b", speed=0.5, cost_per_hour=3.0)]
    found = report(Asked(traces=[str(trace)], objective=Objective(), variants=both, slice_s=60.0))
    shown_on = io.StringIO()
    show(found, Console(width=160, file=shown_on))
    text = shown_on.getvalue()
    assert "following the traffic" in text
    assert "a alone, fixed" in text
    shown = msgspec.json.decode(as_json(found))
    assert len(shown["slices"]) == 2
    assert shown["following"] <= min(each["following"] for each in shown["alone"]) * 1.03


@pytest.mark.parametrize("text", ["2,0.05", "ttft=2,tpot=fast", "ttft=-1", "attainment=2"])
def test_a_wrong_objective_is_said_in_a_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match="--slo"):
        objective(text)


def test_an_objective_is_read() -> None:
    assert objective("ttft=3,tpot=0.1,attainment=0.95") == Objective(ttft_s=3.0, tpot_s=0.1, attainment=0.95)


def test_variants_that_cannot_be_read_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        variants(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_text("variants: [{name: a, cost: 1}]")
    with pytest.raises(ConfigError, match="cost"):
        variants(bad)
    assert variants(None)[0].roles[0] is Role.BOTH


@pytest.mark.parametrize("name", ["shift", "batch"])
def test_days_are_the_same_every_time_and_by_time(name: str) -> None:
    assert name in DAYS
    one, other = make_day(name), make_day(name)
    assert one == other
    times = [request.at for request in one.workload.requests]
    assert times == sorted(times)
    assert bool(one.batch) == (name == "batch")


def test_a_day_can_have_more_traffic_of_the_same_course() -> None:
    one, three = make_day("shift"), make_day("shift@3")
    assert 2.9 < len(three.workload.requests) / len(one.workload.requests) < 3.1
    assert make_day("shift@1").workload.requests == one.workload.requests


@pytest.mark.parametrize("name", ["monday", "shift@none", "shift@0", "shift@nan", "shift@1e9"])
def test_a_day_that_is_none_is_said_so(name: str) -> None:
    with pytest.raises(ConfigError, match="day:"):
        make_day(name)


@pytest.mark.parametrize("slice_s", [float("inf"), float("nan")])
def test_a_slice_without_an_end_is_refused(slice_s: float) -> None:
    with pytest.raises(ConfigError, match="--slice"):
        report(Asked(traces=["day:steady"], objective=Objective(), variants=[variant()], slice_s=slice_s))


def test_variants_that_serve_no_request_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one the role both, or prefill and decode"):
        report(Asked(traces=["day:steady"], objective=Objective(), variants=[variant(roles=(Role.PREFILL,))]))


def test_a_variant_that_serves_no_request_alone_is_not_compared_alone(tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("arrival_s,input_length,output_length\n" + "".join(f"{n},2000,150\n" for n in range(100)))
    apart = [variant("p", roles=(Role.PREFILL,)), variant("d", roles=(Role.DECODE,)), variant("w")]
    found = report(Asked(traces=[str(trace)], objective=Objective(), variants=apart, slice_s=60.0))
    assert [name for name, _, _ in found.alone] == ["w"]
