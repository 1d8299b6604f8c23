"""The manifests are what Kubernetes, KEDA and Prometheus take, and name metrics that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.capacity.plan import Action, Plan
from router.core import Role
from router.planning.service import Status
from router.planning.view import PlanMetrics

ROOT = Path(__file__).parents[3]
KUBERNETES = ROOT / "deploy/kubernetes"
RULES = ROOT / "deploy/prometheus/rules.yaml"
CUSTOM = {"keda.sh/v1alpha1"}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8"))):
            yield f"{path.name}-{number}", document


ALL = dict(documents())


def known_metrics() -> set[str]:
    key = (Role.DECODE, "h100")
    plan = Plan(
        pool="m",
        action=Action.OUT,
        reason="demand",
        why="",
        desired={key: 2},
        present={key: 1},
        attainment=1.0,
        attainment_now=0.9,
    )
    status = Status(plans=[plan], made_at=0.0, took_s=0.1, actions={("m", "out"): 1}, held={"m": 1})
    collected = PlanMetrics(lambda: status, lambda: 5.0).collect()
    return {sample.name for metric in collected for sample in metric.samples}


@pytest.mark.parametrize("name", [name for name, document in ALL.items() if document["apiVersion"] not in CUSTOM])
def test_kubernetes_would_take_it(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validate.validate(ALL[name], "1.31", strict=True)


@pytest.mark.parametrize("name", [name for name, document in ALL.items() if document["apiVersion"] in CUSTOM])
def test_keda_would_take_it(name: str) -> None:
    document = ALL[name]
    spec = document["spec"]
    assert document["kind"] == "ScaledObject"
    assert set(spec) <= {
        "scaleTargetRef",
        "pollingInterval",
        "cooldownPeriod",
        "initialCooldownPeriod",
        "minReplicaCount",
        "maxReplicaCount",
        "fallback",
        "advanced",
        "triggers",
    }
    assert set(spec["fallback"]) == {"failureThreshold", "replicas", "behavior"}
    for trigger in spec["triggers"]:
        assert trigger["type"] == "prometheus"
        assert trigger["metricType"] in {"AverageValue", "Value"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert {"serverAddress", "query", "threshold"} <= set(trigger["metadata"])


def targets() -> set[str]:
    specs = [document.get("spec", {}) for document in ALL.values()]
    return {spec["scaleTargetRef"]["name"] for spec in specs if "scaleTargetRef" in spec}


def test_a_scale_in_waits_for_the_last_request() -> None:
    deployment = next(document for document in ALL.values() if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    script = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1]
    compile(script, "preStop", "exec")
    assert "num_requests_" in script
    assert pod["terminationGracePeriodSeconds"] >= 600
    assert deployment["metadata"]["name"] in targets()


def test_rules_and_triggers_name_metrics_that_there_are() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    texts = [rule["expr"] for rule in rules]
    texts += [path.read_text(encoding="utf-8") for path in KUBERNETES.glob("*.yaml")]
    named = {name for text in texts for name in re.findall(r"\bkvrouter[_:][a-z_]+", text)}
    adapter = {"kvrouter_desired_replicas"}
    assert named - recorded - adapter <= known_metrics() | {"kvrouter_"}
    assert recorded == {"kvrouter:desired_replicas"}


def test_the_adapter_asks_for_no_label_that_the_recording_rule_does_not_keep() -> None:
    adapter = next(document for name, document in ALL.items() if name.startswith("prometheus-adapter"))
    (external,) = yaml.safe_load(adapter["data"]["config.yaml"])["externalRules"]
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    recorded = next(rule["expr"] for rule in rules if rule.get("record") == "kvrouter:desired_replicas")
    assert "namespace" not in recorded
    assert external["resources"]["namespaced"] is False


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_agrees_with_the_rules() -> None:
    for arguments in (["check", "rules", str(RULES)], ["test", "rules", str(RULES.with_name("rules.test.yaml"))]):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
