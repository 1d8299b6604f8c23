"""The compose check: the cluster of `docker-compose.yaml`, built and started once.

Needs a Docker engine with compose v2.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from loadtest.ports import free_ports
from tests.support.compose import Compose, stand_ins

BASE_IMAGES = ["python:3.12-slim", "redis:7-alpine"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Compose]:
    """All six services, healthy."""
    compose = Compose(project=f"kvrouter-check-{os.getpid()}", port=free_ports(1))
    try:
        compose.up()
        yield compose
    finally:
        compose.down()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    made = stand_ins(BASE_IMAGES)
    terminalreporter.section("base images")
    for image in BASE_IMAGES:
        kind = "a stand-in made on this machine, not the published image" if image in made else "as published"
        terminalreporter.write_line(f"{image}: {kind}")
