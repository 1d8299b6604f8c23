from __future__ import annotations

from router.capacity.laws import Profile
from router.capacity.variants import Variant
from router.core import Endpoint, EndpointState, Health, ModelCard, Role
from router.planning.pools import DEFAULT, Pools, Starting

H100, A100 = Variant(name="h100"), Variant(name="a100")


def state(name: str, model: str | None = "m", *, health: Health = Health.HEALTHY, **labels: str) -> EndpointState:
    models = {} if model is None else {model: ModelCard(id=model), "lora": ModelCard(id="lora", parent=model)}
    return EndpointState(
        endpoint=Endpoint(id=name, url=f"http://{name}", role=Role.DECODE, labels=labels), health=health, models=models
    )


def test_endpoints_of_one_base_model_make_a_pool_and_adapters_belong_to_it() -> None:
    pools = Pools([H100])
    states = [state("a"), state("b"), state("c", "other")]
    pools.look(states)
    assert pools.names(states) == ["m", "other"]
    assert (pools.of("lora"), pools.of("other"), pools.of("never")) == ("other", "other", DEFAULT)
    assert not pools.knows("never")


def test_a_pool_is_remembered_while_it_is_empty() -> None:
    pools = Pools([H100])
    assert pools.names([]) == [DEFAULT]
    pools.look([state("a")])
    assert pools.names([]) == ["m"]
    assert pools.of("m") == "m"


def test_what_is_down_or_draining_is_not_counted_on_and_what_starts_is() -> None:
    pools = Pools([H100, A100])
    states = [state("a"), state("b", variant="a100"), state("c", health=Health.DRAINING)]
    late = Starting(key=(Role.DECODE, "h100"), pool="m", overdue=True)
    soon = Starting(key=(Role.DECODE, "h100"), pool=DEFAULT)
    fleet = pools.fleet("m", states, [late, soon])
    assert fleet.ready == {(Role.DECODE, "h100"): 1, (Role.DECODE, "a100"): 1}
    assert fleet.starting == {(Role.DECODE, "h100"): 1}
    assert fleet.hung == {(Role.DECODE, "h100"): 1}
    assert fleet.present == {(Role.DECODE, "h100"): 2, (Role.DECODE, "a100"): 1}


def test_no_pool_is_made_up_while_engines_have_not_said_what_they_serve() -> None:
    assert Pools([H100]).names([state("a", None, health=Health.UNKNOWN)]) == []


def test_an_engine_that_has_not_said_what_it_serves_counts_in_the_only_pool() -> None:
    pools = Pools([H100])
    states = [state("a"), state("b", None)]
    pools.look(states)
    assert pools.names(states) == ["m"]
    assert pools.fleet("m", states, []).ready == {(Role.DECODE, "h100"): 2}


def test_a_variant_that_no_file_tells_of_counts_under_its_own_name_as_slow_and_grows_no_more() -> None:
    pools = Pools([Variant(name="h100", cost_per_hour=9.0, laws=Profile(token_s=1e-5)), A100])
    states = [state("a"), state("b", variant="odd"), state("c", variant="odd")]
    assert pools.fleet("m", states, []).ready == {(Role.DECODE, "h100"): 1, (Role.DECODE, "odd"): 2}
    assert pools.strangers() == ["odd"]
    odd = pools.variants(states, {}, {}, lambda _: None)[-1]
    assert (odd.name, odd.most, odd.laws, odd.confidence, odd.cost_per_hour) == ("odd", 2, Profile(), 0.0, 9.0)
