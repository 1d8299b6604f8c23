from __future__ import annotations

import random
from pathlib import Path

import pytest

from loadtest.replay.cache import BlockCache
from loadtest.replay.engine import Engine
from loadtest.replay.policies.base import Cost, Reference, World
from loadtest.replay.policies.cache_aware import CacheAware
from loadtest.replay.policies.catalogue import find
from loadtest.replay.policies.dynamo import DynamoLinear
from loadtest.replay.policies.least_requests import least_requests
from loadtest.replay.policies.llmd_blend import llmd_blend
from loadtest.replay.policies.lmetric import lmetric
from loadtest.replay.policies.power_of_two import power_of_two
from loadtest.replay.policies.session_affinity import SessionAffinity
from router.core import (
    Api,
    Candidate,
    Endpoint,
    EndpointMatch,
    EndpointMetrics,
    EndpointState,
    InferenceRequest,
    Inflight,
    Role,
    TokenizedPrompt,
    TokenSource,
)
from router.errors import ConfigError, NoEndpoint
from tests.support.replay import PROFILE, SIZE

PROMPT = TokenizedPrompt(
    token_ids=(), source=TokenSource.CLIENT, token_count=10 * SIZE, block_size=SIZE, block_hashes=range(10)
)


def seen(
    name: str,
    *,
    requests: int = 0,
    prefill: int = 0,
    tokens: int = 0,
    match: int = 0,
    waiting: float = 0.0,
    kv: float = 0.0,
    role: Role = Role.BOTH,
) -> Candidate:
    metrics = EndpointMetrics(taken_at=0.0, running=0, waiting=waiting, kv_usage=kv)
    state = EndpointState(endpoint=Endpoint(id=name, url=f"http://{name}", role=role), metrics=metrics)
    return Candidate(state, Inflight(requests, prefill, tokens), EndpointMatch(match, match), 0.0)


def order(cost: Cost, *candidates: Candidate, session: str | None = None, seed: int = 0) -> list[str]:
    headers = {} if session is None else {"x-session-id": session}
    request = InferenceRequest(request_id="r", api=Api.COMPLETIONS, path="/v1/completions", routing_headers=headers)
    decision = Reference(cost).decide(request, PROMPT, candidates, now=0.0, rng=random.Random(seed))
    return [candidate.id for candidate in decision.decode]


def test_least_requests_goes_where_the_fewest_are_in_flight() -> None:
    assert order(least_requests, seen("a", requests=3), seen("b", requests=1), seen("c", requests=2)) == ["b", "c", "a"]


def test_power_of_two_never_takes_the_busier_of_its_two() -> None:
    pool = [seen("a", requests=9), seen("b", requests=1), seen("c", requests=5)]
    firsts = {order(power_of_two, *pool, seed=seed)[0] for seed in range(50)}
    assert firsts == {"b", "c"}


def test_a_session_stays_where_its_first_turn_went_until_that_endpoint_is_gone() -> None:
    affinity = SessionAffinity()
    assert order(affinity, seen("a", requests=1), seen("b"), session="s")[0] == "b"
    assert order(affinity, seen("a"), seen("b", requests=50), session="s")[0] == "b"
    assert order(affinity, seen("a"), seen("b", requests=50), session="t")[0] == "a"
    assert order(affinity, seen("a", requests=9), seen("c", requests=8), session="s")[0] == "c"


def test_cache_aware_follows_a_good_match_else_the_smallest_tree_and_load_when_imbalanced() -> None:
    policy = CacheAware()
    assert order(policy, seen("a", match=9, requests=60), seen("b"))[0] == "a"
    assert order(policy, seen("a", match=9, requests=70), seen("b"))[0] == "b"
    assert order(policy, seen("a", match=2, requests=9), seen("b"))[0] == "a"
    assert order(policy, seen("a", match=2), seen("b"))[0] == "a"
    assert order(policy, seen("a", match=2), seen("b"))[0] == "b"


def test_the_blend_weighs_prefix_queue_and_kv_as_scraped_and_knows_nothing_of_its_own() -> None:
    assert order(llmd_blend, seen("a", match=10), seen("b", waiting=0.0))[0] == "a"
    # 3 x 0.6 for the prefix against 2 for the queue.
    assert order(llmd_blend, seen("a", match=6, waiting=1.0), seen("b"))[0] == "b"
    assert order(llmd_blend, seen("a", match=8, waiting=1.0), seen("b"))[0] == "a"
    assert order(llmd_blend, seen("a", match=1, kv=0.2), seen("b"))[0] == "b"
    assert order(llmd_blend, seen("a", match=1, requests=500), seen("b"))[0] == "a"


def test_dynamo_weighs_blocks_to_compute_against_active_ones() -> None:
    warm, idle = seen("a", match=9, tokens=300), seen("b")
    assert order(DynamoLinear(1.0), warm, idle)[0] == "b"
    assert order(DynamoLinear(4.0), warm, idle)[0] == "a"


def test_lmetric_multiplies_tokens_to_compute_with_the_batch() -> None:
    assert order(lmetric, seen("a", match=5, requests=1), seen("b", requests=0))[0] in "ab"
    assert order(lmetric, seen("a", match=6, requests=1), seen("b", requests=0))[0] == "a"
    assert order(lmetric, seen("a", match=4, requests=1), seen("b", requests=0))[0] == "b"
    assert order(lmetric, seen("a", prefill=100), seen("b", prefill=99))[0] == "b"


def test_in_a_disaggregated_pool_the_formula_chooses_who_prefills() -> None:
    pool = [
        seen("p", role=Role.PREFILL, prefill=900),
        seen("q", role=Role.PREFILL),
        seen("d", role=Role.DECODE, requests=4),
        seen("e", role=Role.DECODE, requests=2),
    ]
    request = InferenceRequest(request_id="r", api=Api.COMPLETIONS, path="/v1/completions")
    decision = Reference(lmetric).decide(request, PROMPT, pool, now=0.0, rng=random.Random(1))
    assert [c.id for c in decision.prefill] == ["q", "p"]
    assert [c.id for c in decision.decode] == ["e", "d"]
    with pytest.raises(NoEndpoint):
        Reference(lmetric).decide(request, PROMPT, pool[:2], now=0.0, rng=random.Random(1))


def world() -> World:
    return World(profile=PROFILE, block_size=SIZE, clock=lambda: 0.0, engines={})


@pytest.mark.parametrize("name", ["configs/local.yaml", "configs/pd.yaml"])
def test_a_configuration_files_scheduling_is_replayed(name: str, tmp_path: Path) -> None:
    text = Path(name).read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text if "\nscheduling:" in text else text + "\nscheduling: {decider: never-disagg-pd-decider}\n")
    contestant = find(str(path))
    assert contestant.name == "mine"
    request = InferenceRequest(request_id="r", api=Api.COMPLETIONS, path="/v1/completions")
    pool = [seen("a", waiting=5), seen("b", waiting=1)]
    decision = contestant.build(world()).policy.decide(request, PROMPT, pool, now=0.0, rng=random.Random(1))
    assert {candidate.id for candidate in decision.decode} == {"a", "b"}


def test_an_endpoint_picker_config_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "epp.yaml"
    path.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
        "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"
    )
    built = find(str(path)).build(world())
    request = InferenceRequest(request_id="r", api=Api.COMPLETIONS, path="/v1/completions")
    pool = [seen("a", waiting=5), seen("b", waiting=1)]
    assert built.policy.decide(request, PROMPT, pool, now=0.0, rng=random.Random(1)).decode[0].id == "b"
    referring = tmp_path / "mine.yaml"
    referring.write_text("scheduling: {endpoint_picker_config: epp.yaml}\n")
    assert find(str(referring)).name == "epp"


def test_an_age_behind_a_name_is_that_of_its_metrics() -> None:
    assert find("llm-d@5").metrics_age_s == 5.0
    assert find("llm-d@5").name == "llm-d@5"


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("lmetrik", None, "did you mean lmetric"),
        ("llm-d@soon", None, "'soon' is no age"),
        ("none.yaml", None, "cannot be read"),
        ("a.yaml", "endpoints: []", "no key scheduling"),
        ("a.yaml", "scheduling: {decidor: x}", r"scheduling\.decidor"),
        ("a.yaml", "scheduling: {decider: magic}", "magic"),
        ("a.yaml", "{", "is no YAML"),
    ],
)
def test_what_is_no_policy_is_refused_with_a_sentence(
    name: str, text: str | None, sentence: str, tmp_path: Path
) -> None:
    if name.endswith(".yaml"):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        name = str(path)
    with pytest.raises(ConfigError, match=sentence):
        find(name)


def test_the_pooled_bound_knows_what_every_engine_has_to_do() -> None:
    from loadtest.replay.job import Job
    from loadtest.replay.policies.pooled import PooledBound
    from tests.unit.loadtest.replay.test_clairvoyant import Silent

    engines = {name: Engine(name, PROFILE, BlockCache(500, SIZE), Silent()) for name in "ab"}
    engines["a"].submit(Job("x", [], 300, 1), 0.0)
    assert order(PooledBound(engines), seen("a", match=5), seen("b", match=5))[0] == "b"
    engines["b"].submit(Job("y", [], 900, 1), 0.0)
    assert order(PooledBound(engines), seen("a", match=5), seen("b", match=5))[0] == "a"


def test_metrics_may_be_an_hour_old_as_those_of_the_whole_replay() -> None:
    assert find("llm-d@3600").metrics_age_s == 3600.0
    with pytest.raises(ConfigError, match="'3601' is no age of 0 to 3600 s"):
        find("llm-d@3601")
