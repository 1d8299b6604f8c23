"""Preflight: what `serve` could not open is said before it is asked to serve, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from loadtest.simulator import TOKENIZER_PATH
from router.errors import ConfigError
from router.preflight import preflight
from router.settings import load


def refusal(**flags: Any) -> str:
    chosen = {name.replace("__", "."): value for name, value in flags.items()}
    settings = load(None, environ={}, flags={"endpoints": ["http://127.0.0.1:1"], **chosen})
    try:
        preflight(settings)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_good_configuration_passes_and_creates_nothing(tmp_path: Path) -> None:
    assert refusal(log__requests=str(tmp_path / "log"), tokenization__default=str(TOKENIZER_PATH)) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "no/such/folder/log"])
def test_a_request_log_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    assert refusal(log__requests=str(tmp_path / name)).startswith("log.requests: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_one_without_permission_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch(mode=0o400)
    assert "permission denied" in refusal(log__requests=str(log))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"upstream__ca_file": "{missing}"}, "upstream.ca_file"),
        (
            {"redis__ca_file": "{missing}", "redis__url": "rediss://127.0.0.1:1", "index__backend": "redis"},
            "redis.ca_file",
        ),
        ({"redis__client_cert_file": "{missing}", "redis__url": "rediss://127.0.0.1:1"}, "redis.client_cert_file"),
        ({"scheduling__endpoint_picker_config": "{missing}"}, "scheduling.endpoint_picker_config"),
        ({"scheduling__decider": "nothing"}, "nothing"),
        ({"tokenization__default": "{missing}"}, "tokenizer"),
        ({"tokenization__default": "{empty}"}, "tokenizer.json"),
        ({"tokenization__models": {"m": "{missing}"}}, "tokenizer"),
    ],
)
def test_what_serve_would_refuse_is_refused(flags: dict[str, Any], named: str, tmp_path: Path) -> None:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        return value.format(missing=tmp_path / "missing", empty=tmp_path)

    assert named in refusal(**{name: filled(value) for name, value in flags.items()})


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"min_engines": 5, "max_engines": 3}, "capacity.min_engines"),
        ({"variants_file": "{missing}"}, "capacity.variants_file"),
        ({"variants_file": "{file}"}, "cost_per_hour"),
        ({"quotas": {"h100": 8}}, "capacity.quotas"),
        ({"actuator": "local"}, "capacity.local_command"),
        ({"actuator": "local", "local_command": ["engine", "{{prot}}"]}, "{prot}"),
    ],
)
def test_what_no_planner_can_be_made_of_is_refused(flags: dict[str, Any], named: str, tmp_path: Path) -> None:
    file = tmp_path / "variants.yaml"
    file.write_text("variants: [{name: a, cost_per_hour: -1}]")

    def filled(value: Any) -> Any:
        if isinstance(value, list):
            return [filled(each) for each in value]
        return value.format(missing=tmp_path / "missing", file=file) if isinstance(value, str) else value

    chosen = {f"capacity__{name}": filled(value) for name, value in flags.items()}
    assert named in refusal(capacity__planner=True, **chosen)
    assert refusal(**chosen) == ""


def test_a_planner_beside_other_workers_is_refused() -> None:
    assert "server.workers" in refusal(capacity__planner=True, server__workers=2)
    assert refusal(capacity__planner=True) == ""


def test_a_chat_template_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((TOKENIZER_PATH / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja" in refusal(tokenization__default=str(tmp_path))
