"""Every file in configs/ is a configuration that starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from router.core import Role
from router.settings import load

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))


def test_the_documented_files_are_there() -> None:
    assert {path.name for path in FILES} >= {"local.yaml", "pd.yaml", "redis.yaml", "docker.yaml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_loads(path: Path) -> None:
    settings = load(path, environ={})
    assert settings.endpoints or settings.discovery.dns


def test_local_serves_whole_requests_without_anything_else() -> None:
    settings = load(CONFIGS / "local.yaml", environ={})
    assert {endpoint.role for endpoint in settings.endpoints} == {Role.BOTH}
    assert settings.redis.url is None


def test_pd_has_both_legs_and_a_threshold() -> None:
    settings = load(CONFIGS / "pd.yaml", environ={})
    assert {endpoint.role for endpoint in settings.endpoints} == {Role.PREFILL, Role.DECODE}
    assert settings.scheduling.plugins[0].parameters == {"nonCachedTokens": 512}


@pytest.mark.parametrize("name", ["redis.yaml", "docker.yaml"])
def test_shared_index_takes_its_password_from_the_environment(name: str) -> None:
    settings = load(CONFIGS / name, environ={"KVROUTER_REDIS__URL": "redis://:secret@redis.example:6379/3"})
    assert settings.index.backend == "redis"
    assert settings.redis.url == SecretStr("redis://:secret@redis.example:6379/3")


def test_docker_names_the_compose_services() -> None:
    compose = (CONFIGS.parent / "docker-compose.yaml").read_text(encoding="utf-8")
    settings = load(CONFIGS / "docker.yaml", environ={})
    for endpoint in settings.endpoints:
        assert f"\n  {endpoint.name}:\n" in compose
