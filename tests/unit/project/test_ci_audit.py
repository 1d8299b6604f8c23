"""The dependency audit tells apart: clean, vulnerable, and not audited at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parents[3]
LOCK = "one==1.0 \\\n    --hash=sha256:00\ntwo==2.0 ; sys_platform == 'linux' \\\n    --hash=sha256:11\n"
KNOWN = [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["9.9"]}]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audited(script: ModuleType, found: dict[str, Any], *, required: bool = False) -> tuple[int, str]:
    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.split("/")[2]
        return httpx.Response(200, json={"vulnerabilities": found[name]}) if name in found else httpx.Response(404)

    said: list[str] = []
    with httpx.Client(base_url="https://index", transport=httpx.MockTransport(answer)) as client:
        code = script.audit(LOCK, script.asking(client), said.append, required=required)
    return code, "\n".join(said)


def test_a_lock_without_advisories_passes(script: ModuleType) -> None:
    code, said = audited(script, {"jinja2": KNOWN, "one": [], "two": [{**KNOWN[0], "withdrawn": "2026-01-01"}]})
    assert (code, said) == (0, "audit: 2 of 2 releases asked about, 0 advisories")


def test_an_advisory_fails_and_is_named_with_its_fix(script: ModuleType) -> None:
    code, said = audited(script, {"jinja2": KNOWN, "one": [], "two": KNOWN})
    assert code == 1
    assert "two 2.0: PYSEC-1, CVE-1; fixed in 9.9" in said


def test_a_release_that_nothing_is_told_of_is_no_pass(script: ModuleType) -> None:
    code, said = audited(script, {"jinja2": KNOWN, "one": []})
    assert code == 1
    assert "could not be told: two 2.0" in said


@pytest.mark.parametrize("found", [{}, {"jinja2": [], "one": [], "two": []}])
@pytest.mark.parametrize("required", [False, True])
def test_without_a_database_it_is_a_skip_and_says_so(script: ModuleType, found: dict[str, Any], required: bool) -> None:
    code, said = audited(script, found, required=required)
    assert (code, said.startswith("audit SKIPPED: nothing was audited")) == (int(required), True)
