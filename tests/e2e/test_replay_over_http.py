"""The order of policies over HTTP: engines and a router in processes for each policy, figures beside the replay's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.replay_over_http.__main__ import main

pytestmark = pytest.mark.timeout(180)


def test_a_few_seconds_of_traffic_are_served_under_each_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "figures.json"
    small = ["synthetic:hot-document", "--engines", "2", "--seconds", "3", "--warm-up", "1", "--speed", "0.25"]
    # No pair is judged: so few requests would be no judgement.
    code = main([*small, "--policy", "default", "--policy", "lmetric", "--margin", "1000", "--json", str(told)])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "means, in the replay and over HTTP" in shown.out
    outcomes = json.loads(told.read_text())
    assert [each["policy"] for each in outcomes] == ["default", "lmetric"]
    for each in outcomes:
        assert each["http"]["failed"] == 0
        assert each["http"]["requests"] == each["replay"]["requests"] > 5
        assert 0.0 < each["http"]["ttft_s"] < each["http"]["e2e_s"]
    assert any(each["http"]["hit_rate"] > 0.0 for each in outcomes)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["synthetic:agents"], "its turns wait for answers"),
        (["nowhere.jsonl"], "cannot be read"),
        (["synthetic:unique", "--tokens", "3"], "blocks of 128 tokens cannot be made 3 times smaller"),
        (["synthetic:unique", "--profile", "h100"], "no profile 'h100'"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err
