from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.pool.facts import FactsError, dialable, read_event_sources, read_models, read_version
from tests.support.pool import event_sources

FIXTURES = os.environ.get("KVROUTER_FIXTURES")
recorded = pytest.mark.skipif(not FIXTURES, reason="KVROUTER_FIXTURES does not name a folder of recorded answers")


def body(name: str) -> str:
    return Path(FIXTURES or "", "http", name).read_text().replace("\r\n", "\n").partition("\n\n")[2]


@recorded
def test_recorded_models_keep_aliases_adapters_and_the_engines_own_json() -> None:
    text = body("models.http")
    cards = read_models(text)
    assert list(cards) == ["tiny", "tiny-alias", "lora-a", "lora-b"]
    assert (cards["tiny"].root, cards["tiny"].max_model_len) == ("/srv/models/tiny-llama", 2048)
    assert (cards["lora-a"].parent, cards["lora-a"].max_model_len) == ("tiny", None)
    for card, entry in zip(cards.values(), json.loads(text)["data"], strict=True):
        assert card.raw.decode() in text
        assert json.loads(card.raw) == entry


@pytest.mark.parametrize(("told", "length"), [(-5, None), (0, None), (1, 1), (131072, 131072)])
def test_a_length_that_no_model_can_have_is_not_known(told: int, length: int | None) -> None:
    (card,) = read_models(json.dumps({"data": [{"id": "m", "max_model_len": told}]})).values()
    assert card.max_model_len == length


@recorded
def test_recorded_version() -> None:
    assert read_version(body("version.http")) == "0.32.0"


@recorded
def test_recorded_event_sources_of_one_and_of_two_ranks() -> None:
    (source,) = read_event_sources(body("kv_event_sources.http"), "engine").values()
    assert (source.endpoint, source.replay_endpoint) == ("tcp://engine:5601", "tcp://engine:6601")
    assert source.topic == "kv@s1@tiny"
    two = read_event_sources(Path(FIXTURES or "", "http", "kv_event_sources_dp2.json").read_text(), "10.0.0.1")
    assert {rank: source.endpoint for rank, source in two.items()} == {
        0: "tcp://10.0.0.1:5641",
        1: "tcp://10.0.0.1:5642",
    }


@pytest.mark.parametrize(
    ("address", "host", "dialled"),
    [
        ("tcp://*:5557", "engine", "tcp://engine:5557"),
        ("tcp://0.0.0.0:5557", "engine", "tcp://engine:5557"),
        ("tcp://[::]:5557", "engine", "tcp://engine:5557"),
        ("tcp://*:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://other:5557", "engine", "tcp://other:5557"),
        ("ipc:///run/kv", "engine", "ipc:///run/kv"),
    ],
)
def test_a_bind_address_becomes_one_to_dial(address: str, host: str, dialled: str) -> None:
    assert dialable(address, host) == dialled


def test_an_engine_that_publishes_nothing_has_no_sources() -> None:
    sources = event_sources(0)
    assert isinstance(sources["0"], dict)
    off = {"0": {**sources["0"], "enable_kv_cache_events": False}, "1": {"endpoint": None}, "2": {}}
    assert read_event_sources(json.dumps(off), "engine") == {}
    assert read_event_sources("{}", "engine") == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"data":{}}', '{"data":[{"id":1}]}', '{"data":[{}]}', "<html>"])
def test_other_answers_than_models_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(FactsError) as refused:
        read_models(text)
    assert "html" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ['{"x":{}}', '{"0":[]}', "[]", '{"0":{"endpoint":5}}', '{"-1":{"endpoint":"tcp://*:1"}}']
)
def test_other_answers_than_event_sources_are_refused(text: str) -> None:
    with pytest.raises(FactsError):
        read_event_sources(text, "engine")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "id", "0", "endpoint", "version"]), inner),
)


@given(JSON.map(json.dumps) | st.text())
def test_no_answer_raises_anything_else(text: str) -> None:
    for read in (read_models, read_version, lambda text: read_event_sources(text, "engine")):
        try:
            read(text)
        except FactsError:
            continue


def test_a_model_listed_twice_counts_once() -> None:
    assert len(read_models('{"data":[{"id":"m","root":"a"},{"id":"m","root":"b"}]}')) == 1
