"""What the project's own files promise: locks without addresses, no machine's paths, images as users want them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
LOCKS = ["requirements.lock", "deploy/requirements.lock"]
DISTRIBUTION = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[a-z,]+\])?==(\S+)(?: ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")
HOME_PATH = re.compile(r"(?<![\w.$}{-])/(?:root|home|work|Users)/[\w.-]+")


def tracked() -> list[str]:
    """The repository's files; an unpacked source archive has no list of them."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of the project's files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def text_of(name: str) -> str | None:
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_versions_and_hashes_and_nothing_else(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    strange = [line for line in lines if not (line.startswith("#") or DISTRIBUTION.match(line) or HASH.match(line))]
    assert strange == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_address(name: str) -> None:
    assert (
        re.findall(r".*(?:://|--(?:extra-)?index|--find-links| @ ).*", (ROOT / name).read_text(encoding="utf-8")) == []
    )


def test_the_image_installs_what_the_tests_ran_with() -> None:
    everything, runtime = (pins(name) for name in LOCKS)
    assert runtime.items() <= everything.items()
    assert {"locust", "pytest", "openai"} <= everything.keys() - runtime.keys()


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {found[1]: found[2] for line in lines if (found := DISTRIBUTION.match(line))}


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    found = [f"{name}: {match}" for name in tracked() if (text := text_of(name)) for match in HOME_PATH.findall(text)]
    assert found == []


def test_no_lock_that_embeds_addresses_is_committed() -> None:
    assert {Path(name).name for name in tracked()}.isdisjoint({"uv.lock", "pylock.toml", "poetry.lock"})


def test_the_dockerfile_needs_no_frontend_and_runs_as_nobody_special() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").splitlines()
    assert not any(line.lower().replace(" ", "").startswith("#syntax=") for line in lines)
    assert [line for line in lines if line.startswith("FROM ")][-1] == "FROM python:3.12-slim"
    assert "USER kvrouter" in lines


def test_compose_publishes_the_router_on_loopback_only_and_checks_every_service() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yaml").read_text(encoding="utf-8"))
    services = compose["services"]
    assert set(services) == {"redis", "router", "prefill-0", "prefill-1", "decode-0", "decode-1"}
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"router": ["127.0.0.1:${ROUTER_PORT:-8000}:8000"]}
    assert all("test" in service["healthcheck"] for service in services.values())
    waits = services["router"]["depends_on"]
    assert waits == {name: {"condition": "service_healthy"} for name in services.keys() - {"router"}}


def test_every_target_of_the_makefile_is_explained() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(re.findall(r"^([a-z0-9-]+):.*## ", text, re.MULTILINE))
    assert {"install", "demo", "test", "check", "fix", "e2e", "bench", "loadtest", "up", "down"} <= set(
        phony[1].split()
    )


def test_the_readme_leads_to_every_page_of_the_docs() -> None:
    linked = set(re.findall(r"\(docs/([a-z-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in (ROOT / "docs").glob("*.md")}
