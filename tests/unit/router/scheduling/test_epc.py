"""Configurations in the shapes of llm-d's guides (own values), through the loader and into a scheduler."""

import random
from typing import Any

import pytest

from router.core import Role
from router.errors import ConfigError
from router.plugins.builtin import builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import PluginSettings, SchedulingSettings
from router.scheduling.epc import EpcResult, is_epc, load_epc
from router.scheduling.epc_producers import Hints, seconds
from tests.support.scheduling import NOW, candidate, ids, prompt, request

NEW = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
OLD = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n"

BASELINE = (
    NEW
    + """
plugins:
- type: inflight-load-producer
- type: approx-prefix-cache-producer
  parameters: {maxPrefixTokensToMatch: 32768, lruCapacityPerServer: 20000}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.7, maxTTFTPenaltyMs: 0, maxTokensInFlightPenalty: 200000}
- type: token-load-scorer
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefix-cache-affinity-filter
  - pluginRef: token-load-scorer
"""
)

BLEND = (
    OLD
    + """
plugins:
- type: single-profile-handler
- type: prefix-cache-scorer
  parameters: {hashBlockSize: 5, maxPrefixBlocksToMatch: 256, lruCapacityPerServer: 31250}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: max-score-picker
  parameters: {maxNumOfEndpoints: 1}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.0}
  - {pluginRef: max-score-picker}
"""
)

PRECISE_OLD = (
    OLD
    + """
plugins:
- type: tokenizer
  parameters:
    modelName: org/model
    udsTokenizerConfig: {socketFile: /run/tokenizer.socket}
- type: endpoint-notification-source
- type: metrics-data-source
- type: core-metrics-extractor
- type: single-profile-handler
- type: decode-filter
- type: precise-prefix-cache-scorer
  parameters:
    tokenProcessorConfig: {blockSize: 32, hashSeed: "7"}
    speculativeIndexing: true
    indexerConfig:
      tokenizersPoolConfig: {modelName: org/model, workersCount: 4, uds: {socketFile: /run/tokenizer.socket}}
      kvBlockIndexConfig: {enableMetrics: true}
    kvEventsConfig: {topicFilter: "kv@", concurrency: 2, discoverPods: true, podDiscoveryConfig: {socketPort: 5600}}
- type: kv-cache-utilization-scorer
- type: queue-scorer
- type: no-hit-lru-scorer
  parameters: {lruSize: 512}
- type: max-score-picker
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-scorer}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: tokenizer}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2.0}
  - {pluginRef: queue-scorer, weight: 2.0}
  - {pluginRef: precise-prefix-cache-scorer, weight: 4.0}
  - {pluginRef: no-hit-lru-scorer, weight: 1.5}
  - {pluginRef: max-score-picker}
"""
)

PRECISE_NEW = (
    NEW
    + """
plugins:
- type: token-producer
  parameters: {modelName: org/model, vllm: {url: "http://render:8000"}}
- type: endpoint-notification-source
- type: precise-prefix-cache-producer
  parameters:
    tokenProcessorConfig: {blockSizeTokens: 32}
    speculativeIndexing: true
    speculativeTTL: 1500ms
    kvEventsConfig: {topicFilter: "kv@", discoverPods: true, podDiscoveryConfig: {socketPort: 5600}}
- type: inflight-load-producer
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}
- type: prefix-cache-affinity-filter
  parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer, peakPrefillThroughput: 9000}
- type: token-load-scorer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: precise-prefix-cache-producer}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
"""
)

PD_NEW = (
    NEW.replace("v1alpha1", "v1")
    + """
plugins:
- type: always-disagg-pd-decider
- type: disagg-profile-handler
  parameters: {deciders: {prefill: always-disagg-pd-decider}}
- type: prefill-filter
- type: decode-filter
- type: approx-prefix-cache-producer
- type: inflight-load-producer
- type: prefix-cache-affinity-filter
  parameters: {peakPrefillThroughput: 20000}
- type: token-load-scorer
- type: active-request-scorer
- type: max-score-picker
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
  - {pluginRef: max-score-picker}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: active-request-scorer}
  - {pluginRef: max-score-picker}
"""
)

PD_BY_PREFIX = (
    OLD
    + """
plugins:
- type: disagg-headers-handler
- type: prefix-cache-scorer
  parameters: {maxPrefixBlocksToMatch: 256, blockSizeTokens: 16, autoTune: false, lruCapacityPerServer: 1000}
- type: queue-scorer
- type: prefill-filter
- type: decode-filter
- type: max-score-picker
- type: prefix-based-pd-decider
  parameters: {nonCachedTokens: 48}
- type: disagg-profile-handler
  parameters: {deciders: {prefill: prefix-based-pd-decider}}
schedulingProfiles:
- name: prefill
  plugins:
  - {pluginRef: prefill-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
- name: decode
  plugins:
  - {pluginRef: decode-filter}
  - {pluginRef: max-score-picker}
  - {pluginRef: prefix-cache-scorer, weight: 2}
  - {pluginRef: queue-scorer, weight: 1}
"""
)

PD_OLD = (
    OLD
    + """
plugins:
- type: prefill-header-handler
- type: prefill-filter
- type: decode-filter
- type: queue-scorer
- type: pd-profile-handler
  parameters: {threshold: THRESHOLD, hashBlockSize: 5}
schedulingProfiles:
- name: prefill
  plugins: [{pluginRef: prefill-filter}, {pluginRef: queue-scorer, weight: 1.0}]
- name: decode
  plugins: [{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 1.0}]
"""
)

DATA_PARALLEL = (
    OLD
    + """
plugins:
- type: prefix-cache-scorer
- type: decode-filter
- type: max-score-picker
- type: data-parallel-profile-handler
  parameters: {primaryPort: 8000}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}, {pluginRef: prefix-cache-scorer, weight: 2}]
"""
)

GUIDES = [
    BASELINE,
    BLEND,
    PRECISE_OLD,
    PRECISE_NEW,
    PD_NEW,
    PD_BY_PREFIX,
    PD_OLD.replace("THRESHOLD", "0"),
    DATA_PARALLEL,
]


def load(text: str) -> EpcResult:
    return load_epc(text, builtin_registry())


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(text)
    return str(error.value)


def scorers(settings: SchedulingSettings, leg: str = "decode") -> dict[str, float]:
    return {scorer.plugin: scorer.weight for scorer in getattr(settings.profiles, leg).scorers}


@pytest.mark.parametrize("text", GUIDES)
def test_every_guide_loads_builds_and_decides(text: str) -> None:
    scheduler = build_scheduler(load(text).settings, builtin_registry())
    pool = [candidate(role.value, role=role) for role in Role]
    decision = scheduler.decide(request(), prompt(64), pool, now=NOW, rng=random.Random(0))
    assert "prefill" not in ids(decision.decode)


def test_the_baseline_is_sticky_until_saturated() -> None:
    loaded = load(BASELINE)
    decode = loaded.settings.profiles.decode
    assert decode.filters == ("prefix-cache-affinity-filter",)
    assert scorers(loaded.settings) == {"token-load-scorer": 1.0}
    assert decode.picker == "max-score-picker"
    assert loaded.settings.decider == "never-disagg-pd-decider"
    assert loaded.hints == Hints(index="approximate", max_prefix_tokens=32768, lru_blocks=20000)


def test_the_blend_keeps_its_weights_and_all_fallbacks() -> None:
    loaded = load(BLEND)
    assert scorers(loaded.settings) == {
        "prefix-cache-scorer": 3.0,
        "queue-scorer": 2.0,
        "kv-cache-utilization-scorer": 2.0,
    }
    assert PluginSettings(type="max-score-picker", name="max-score-picker") in loaded.settings.plugins
    assert loaded.hints == Hints(index="approximate", lru_blocks=31250)


def test_the_deprecated_precise_scorer_is_a_scorer_and_an_exact_index() -> None:
    loaded = load(PRECISE_OLD)
    assert loaded.settings.profiles.decode.filters == ("decode-filter",)
    assert scorers(loaded.settings) == {
        "kv-cache-utilization-scorer": 2.0,
        "queue-scorer": 2.0,
        "precise-prefix-cache-scorer": 4.0,
        "no-hit-lru-scorer": 1.5,
    }
    assert loaded.hints == Hints(
        index="exact", block_size=32, speculative=True, kv_events_port=5600, tokenizer="org/model"
    )


def test_the_precise_producer_becomes_hints() -> None:
    loaded = load(PRECISE_NEW)
    assert loaded.hints == Hints(
        index="exact",
        block_size=32,
        speculative=True,
        speculative_ttl_s=1.5,
        kv_events_port=5600,
        tokenizer="org/model",
        render_url="http://render:8000",
    )
    assert [plugin.type for plugin in loaded.settings.plugins] == [
        "prefix-cache-affinity-filter",
        "token-load-scorer",
        "never-disagg-pd-decider",
    ]


def test_disaggregation_has_a_profile_for_each_leg_and_the_named_decider() -> None:
    settings = load(PD_NEW).settings
    assert settings.profiles.prefill.filters == ("prefill-filter", "prefix-cache-affinity-filter")
    assert settings.profiles.decode.filters == ("decode-filter",)
    assert scorers(settings, "prefill") == {"token-load-scorer": 1.0}
    assert scorers(settings) == {"active-request-scorer": 1.0}
    assert settings.decider == "always-disagg-pd-decider"


def test_the_prefix_decider_keeps_its_threshold() -> None:
    loaded = load(PD_BY_PREFIX)
    assert loaded.settings.decider == "prefix-based-pd-decider"
    assert loaded.hints == Hints(index="approximate", block_size=16, max_prefix_tokens=4096, lru_blocks=1000)
    scheduler = build_scheduler(loaded.settings, builtin_registry())
    pool = [candidate("p", role=Role.PREFILL), candidate("d", role=Role.DECODE)]
    reasons = [
        scheduler.decide(request(), prompt(blocks), pool, now=NOW, rng=random.Random(0)).reason for blocks in (2, 3)
    ]
    assert reasons == ["pd-short", "pd"]


@pytest.mark.parametrize(
    ("threshold", "decider", "parameters"),
    [("0", "always-disagg-pd-decider", {}), ("10", "prefix-based-pd-decider", {"nonCachedTokens": 3})],
)
def test_the_old_handlers_threshold_counts_characters(threshold: str, decider: str, parameters: dict[str, Any]) -> None:
    settings = load(PD_OLD.replace("THRESHOLD", threshold)).settings
    assert settings.decider == decider
    assert PluginSettings(type=decider, parameters=parameters) in settings.plugins


def test_nothing_at_all_is_llm_ds_default_blend_and_no_profile_is_all_plugins() -> None:
    assert scorers(load(NEW + "plugins: []\n").settings) == {
        "queue-scorer": 2.0,
        "kv-cache-utilization-scorer": 2.0,
        "prefix-cache-scorer": 3.0,
    }
    listed = load(NEW + "plugins: [{type: queue-scorer}, {type: decode-filter}, {type: random-picker}]\n").settings
    assert scorers(listed) == {"queue-scorer": 1.0}
    assert (listed.profiles.decode.filters, listed.profiles.decode.picker) == (("decode-filter",), "random-picker")


def test_a_plugin_that_filters_and_scores_takes_both_places() -> None:
    settings = load(NEW + "plugins: [{type: context-length-aware, parameters: {enableFiltering: true}}]\n").settings
    assert settings.profiles.decode.filters == ("context-length-aware",)
    assert scorers(settings) == {"context-length-aware": 1.0}


def test_names_distinguish_plugins_of_one_type() -> None:
    settings = load(
        NEW
        + """
plugins:
- {name: short, type: load-aware-scorer, parameters: {threshold: 4}}
- {name: long, type: load-aware-scorer, parameters: {threshold: 64}}
schedulingProfiles:
- name: any-name
  plugins: [{pluginRef: short, weight: 2}, {pluginRef: long}]
"""
    ).settings
    assert scorers(settings) == {"short": 2.0, "long": 1.0}
    build_scheduler(settings, builtin_registry())


def test_older_spellings_are_translated() -> None:
    settings = load(
        NEW
        + """
plugins:
- {type: prefix-cache-scorer, parameters: {prefixLengthWeight: 0.5, maxModelLen: 4096}}
- {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {sources: [{header: X-Chat}]}}}
- {type: session-affinity-scorer, parameters: {algorithm: session_id_header, headerName: x-me, missThreshold: 3}}
- {type: utilization-detector, parameters: {queueDepthThreshold: 10, headroom: 0.5}}
"""
    ).settings
    assert {plugin.key: dict(plugin.parameters) for plugin in settings.plugins[:4]} == {
        "prefix-cache-scorer": {"matchLengthWeight": 0.5, "matchLengthScaleTokens": 4096},
        "session-affinity-filter": {"headerName": "X-Chat"},
        "session-affinity-scorer": {"headerName": "x-me"},
        "utilization-detector": {
            "conditions": [
                {"metric": "waiting-queue", "maxValue": 15.0},
                {"metric": "kv-cache-utilization", "maxValue": 1.0},
            ],
            "fallbackOnEmpty": True,
        },
    }
    build_scheduler(settings, builtin_registry())


def test_what_the_router_does_by_itself_is_accepted() -> None:
    load(
        NEW
        + """
featureGates: [prepareDataPlugins, flowControl=false]
plugins: [{type: queue-scorer}, {type: utilization-detector}, {type: openai-parser}, {type: metrics-data-source}]
requestHandler: {parsers: [{pluginRef: openai-parser}]}
saturationDetector: {pluginRef: utilization-detector}
dataLayer: {injectDefaults: false, sources: [{pluginRef: metrics-data-source, extractors: []}]}
"""
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: Deployment\napiVersion: v1", ["kind: EndpointPickerConfig"]),
        ("[", ["not YAML"]),
        ("apiVersion: llm-d.ai/v9\nkind: EndpointPickerConfig", ["'llm-d.ai/v9'", "llm-d.ai/v1alpha1"]),
        (NEW + "schedulingProfile: []", ["schedulingProfile"]),
        (NEW + "featureGates: [flowControl]", ["'flowControl'", "featureGates"]),
        (NEW + "flowControl: {maxRequests: 5}", ["flowControl", "utilization-filter"]),
        (NEW + "dataLayer: {discovery: {pluginRef: x}}", ["discovery"]),
        (NEW + "plugins: [{type: latency-scorer}]", ["'latency-scorer'", "token-load-scorer instead"]),
        (NEW + "plugins: [{type: encode-filter}]", ["'encode-filter'", "encode profile"]),
        (NEW + "plugins: [{type: topology-affinity-scorer}]", ["'topology-affinity-scorer'", "remove it"]),
        (NEW + "plugins: [{type: vllmgrpc-parser}]", ["'vllmgrpc-parser'"]),
        (NEW + "plugins: [{type: queue-scorer, parameters: {x: 1}}]", ["'queue-scorer'", "'x' is unknown"]),
        (NEW + "plugins: [{type: queue-scorer}, {type: queue-scorer}]", ["two plugins", "'queue-scorer'"]),
        (NEW + "plugins: [{type: single-profile-handler}, {type: disagg-profile-handler}]", ["second profile handler"]),
        (
            NEW + "plugins: [{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: nobody}}]",
            ["'nobody' names no plugin"],
        ),
        (NEW + "plugins: []\nschedulingProfiles: [{name: a, plugins: [{pluginRef: nobody}]}]", ["'nobody'"]),
        (
            NEW + "plugins: [{type: random-picker}, {type: max-score-picker}]",
            ["profile 'default' has 2 pickers"],
        ),
        (
            NEW + "plugins: [{type: queue-scorer}]\n"
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: -1}]}]",
            ["weight of 'queue-scorer'"],
        ),
        (
            NEW + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: a}, {name: b}]",
            ["2 profiles (a, b)", "disagg-profile-handler"],
        ),
        (
            NEW + "plugins: [{type: disagg-profile-handler}]\nschedulingProfiles: [{name: a}]",
            ["profile named 'decode'"],
        ),
        (
            NEW + "plugins: [{type: disagg-profile-handler, parameters: {deciders: {prefill: no}}}]\n"
            "schedulingProfiles: [{name: decode}, {name: prefill}]",
            ["disagg-profile-handler"],
        ),
        (
            NEW + "plugins: [{type: disagg-profile-handler, parameters: {deciders: {prefill: nobody}}}]\n"
            "schedulingProfiles: [{name: decode}, {name: prefill}]",
            ["decider 'nobody' is not declared"],
        ),
        (
            NEW + "plugins: [{type: queue-scorer}, {type: disagg-profile-handler, "
            "parameters: {deciders: {prefill: queue-scorer}}}]\n"
            "schedulingProfiles: [{name: decode}, {name: prefill}]",
            ["'queue-scorer'", "not a decider"],
        ),
        (
            NEW + "plugins: [{type: disagg-profile-handler, parameters: {stageOrder: prefill-first}}]\n"
            "schedulingProfiles: [{name: decode}]",
            ["stageOrder"],
        ),
        (
            NEW
            + "plugins: [{type: precise-prefix-cache-producer, parameters: {kvEventsConfig: {engineType: sglang}}}]",
            ["precise-prefix-cache-producer", "engineType"],
        ),
        (
            NEW + "plugins: [{type: precise-prefix-cache-producer, parameters: {speculativeTTL: soon}}]",
            ["'soon' is not a duration"],
        ),
        (
            NEW + "plugins: [{type: session-affinity-filter, parameters: {sessionIdConfig: 5}}]",
            ["session-affinity-filter", "sessionIdConfig"],
        ),
    ],
)
def test_anything_else_is_refused_by_name_and_with_the_mend(text: str, words: list[str]) -> None:
    message = refused(text)
    assert message.startswith("EndpointPickerConfig: ")
    for word in words:
        assert word in message


def test_a_document_is_recognised_by_its_kind() -> None:
    assert is_epc({"kind": "EndpointPickerConfig"})
    assert not is_epc({"scheduling": {}})
    assert not is_epc(["EndpointPickerConfig"])


@pytest.mark.parametrize(("text", "value"), [("2s", 2.0), ("500ms", 0.5), ("1m30s", 90.0), ("1.5h", 5400.0)])
def test_go_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "5", "s", "1 s", "1.s", "-1s", "1d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="duration"):
        seconds(text)
