from __future__ import annotations

import json

from router.core import Endpoint, EndpointState, Health, ModelCard
from router.pool.models import listing, merged, serving


def state(name: str, *models: str, health: Health = Health.HEALTHY) -> EndpointState:
    cards = {model: ModelCard(id=model, raw=json.dumps({"id": model, "from": name}).encode()) for model in models}
    return EndpointState(endpoint=Endpoint(id=name, url=f"http://{name}"), models=cards, health=health)


FLEET = [state("a", "base", "lora"), state("b", "base", "other"), state("c")]


def names(states: list[EndpointState]) -> list[str]:
    return [state.endpoint.id for state in states]


def test_a_model_is_served_by_those_that_list_it_and_those_that_list_nothing_yet() -> None:
    assert names(serving("base", FLEET)) == ["a", "b", "c"]
    assert names(serving("lora", FLEET)) == ["a", "c"]
    assert names(serving("other", FLEET)) == ["b", "c"]


def test_no_model_asks_for_anyone_and_an_unknown_one_for_nobody() -> None:
    assert names(serving(None, FLEET)) == ["a", "b", "c"]
    assert serving("nope", FLEET[:2]) == []
    assert serving("base", []) == []


def test_the_merged_list_keeps_aliases_and_adapters_once_each_and_the_first_card() -> None:
    cards = merged(FLEET)
    assert list(cards) == ["base", "lora", "other"]
    assert json.loads(cards["base"].raw)["from"] == "a"


def test_hlt_01_the_listing_needs_no_engine_and_does_not_flicker_with_health() -> None:
    down = [state("a", "base", health=Health.UNHEALTHY), state("b", "base", "other")]
    listed = json.loads(listing(down))
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["base", "other"]
    assert json.loads(listing([])) == {"object": "list", "data": []}


def test_dsc_01_every_listed_model_is_served_by_someone() -> None:
    for model in merged(FLEET):
        assert serving(model, FLEET)
