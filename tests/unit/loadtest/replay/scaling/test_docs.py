"""The replays that docs/autoscaling.md tells people to type are ones that the command takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from loadtest.replay.cli import app
from loadtest.replay.scaling.base import Given
from loadtest.replay.scaling.catalogue import make_law
from loadtest.replay.scaling.days import DAY, read_day
from loadtest.simulator.settings import find_profile
from router.core import Role

DOCS = Path(__file__).parents[5] / "docs" / "autoscaling.md"
COMMANDS = sorted(set(re.findall(r"kvrouter replay ([^`\n]+)", DOCS.read_text(encoding="utf-8"))))


def test_there_are_some() -> None:
    assert any("--study" in command for command in COMMANDS)
    assert any("--scaling" in command for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_replay_is_understood(command: str) -> None:
    words = shlex.split(command)
    given = get_command(app).make_context("replay", words).params
    for trace in given["traces"] or ():
        if str(trace).startswith(DAY):
            read_day(str(trace).removeprefix(DAY))
    roles = [Role.PREFILL, Role.DECODE] if given["prefill"] else [Role.BOTH]
    for law in given["scaling"] or ():
        make_law(law, Given(roles=roles, ttft_s=2.0, tpot_s=0.05, startup_s=90.0, requests=[]), find_profile("70b-tp4"))
