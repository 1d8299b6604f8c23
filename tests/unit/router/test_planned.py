from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from router.capacity.engine_model import EngineModels
from router.errors import ConfigError
from router.inflight import InflightTracker
from router.planned import Planned, need_solver, planned
from router.pool.pool import Pool
from router.settings import CapacitySettings, Settings
from tests.support.kvindex import Clock

TWO = "variants: [{name: a, hardware: h100}, {name: b, roles: [prefill]}]"


def made(folder: Path, variants: str = TWO, **capacity: Any) -> Planned | None:
    file = folder / "variants.yaml"
    file.write_text(variants)
    clock = Clock()
    chosen = CapacitySettings(planner=True, variants_file=str(file), **capacity)
    return planned(
        Settings(capacity=chosen),
        pool=Pool(clock=clock),
        engines=EngineModels(clock),
        inflight=InflightTracker(),
        routers=lambda: 1,
        priority_of=lambda _: 0,
        clock=clock,
    )


@pytest.mark.parametrize("name", ["scipy", "numpy"])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^demo needs {name}, .*pip install 'kvrouter\[planner\]'"):
        need_solver("demo", lambda asked: None if asked == name else asked)
    need_solver("demo", lambda asked: asked)


def test_a_router_without_a_planner_needs_none_of_its_packages() -> None:
    absent = "import sys; sys.modules.update(scipy=None, numpy=None)"
    program = f"{absent}; import router.serving, router.preflight, router.planned"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_fits_together_is_made(tmp_path: Path) -> None:
    command = ("engine", "--port={port}", "{role}", "{{literal}}")
    assert made(tmp_path, actuator="local", local_command=command, quotas={"h100": 8}) is not None


@pytest.mark.parametrize(
    ("capacity", "said"),
    [
        ({"min_engines": 5, "max_engines": 3}, r"min_engines is 5, above capacity\.max_engines, 3"),
        ({"quotas": {"h200": 4}}, "the hardware h200: it is one of h100"),
        ({"actuator": "local"}, "local_command is empty"),
        ({"actuator": "local", "local_command": ("engine", "{prot}")}, r"by the name of \{prot\}"),
        ({"actuator": "local", "local_command": ("engine", "8000")}, r"has no \{port\}"),
        ({"actuator": "local", "local_command": ("engine", "{port")}, r"\{port: write a brace"),
    ],
)
def test_settings_that_do_not_fit_together_are_said_in_a_sentence(
    tmp_path: Path, capacity: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, **capacity)


@pytest.mark.parametrize(
    ("form", "roles", "said"),
    [
        ("present", "[prefill]", "both, or prefill and decode"),
        ("aggregated", "[prefill, decode]", "the role both"),
        ("disaggregated", "[both, prefill]", "prefill and decode"),
    ],
)
def test_variants_that_cannot_serve_a_request_in_the_form_are_refused(
    tmp_path: Path, form: str, roles: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        made(tmp_path, f"variants: [{{name: a, roles: {roles}}}]", form=form)
