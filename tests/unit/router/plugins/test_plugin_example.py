"""The worked example of docs/plugins.md, installed and used."""

import random
import re
import tomllib
from pathlib import Path

import msgspec
import pytest
import yaml

from router.errors import ConfigError
from router.plugins.builtin import BUILTIN, builtin_registry
from router.scheduling.build import build_scheduler
from router.scheduling.config import SchedulingSettings
from tests.support.scheduling import NOW, candidate, ids, prompt, request

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "tests" / "fixtures" / "plugin_example"
SETTINGS = """\
scheduling:
  plugins:
    - {type: zone-scorer, parameters: {header: x-zone}}
  profiles:
    decode:
      scorers: [{plugin: prefix-cache-scorer, weight: 3}, {plugin: zone-scorer, weight: 1}]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an installer leaves behind: the package on the path, and its metadata beside it."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "kvrouter_zone_scorer-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.usefixtures("installed")
def test_an_installed_plugin_is_found_by_its_entry_point_and_decides() -> None:
    settings = SchedulingSettings.model_validate(yaml.safe_load(SETTINGS)["scheduling"])
    scheduler = build_scheduler(settings, builtin_registry())
    pool = [candidate("far", labels={"zone": "1"}), candidate("near", labels={"zone": "2"}), candidate("nowhere")]
    asked = msgspec.structs.replace(request(), headers=((b"x-zone", b"2"),))
    decision = scheduler.decide(asked, prompt(), pool, now=NOW, rng=random.Random(0))
    assert ids(decision.decode)[0] == "near"


@pytest.mark.usefixtures("installed")
def test_its_parameters_are_checked_like_built_in_ones() -> None:
    with pytest.raises(ConfigError, match="plugin 'z' of type 'zone-scorer': parameter 'headr' is unknown"):
        builtin_registry().create("zone-scorer", "z", {"headr": "x-zone"})


def test_the_guide_shows_the_example_as_it_is() -> None:
    guide = (ROOT / "docs" / "plugins.md").read_text()
    module = (EXAMPLE / "kvrouter_zone_scorer" / "__init__.py").read_text()
    assert f"```python\n{module}```" in guide
    entry = '[project.entry-points."kvrouter.plugins"]\nzone-scorer = "kvrouter_zone_scorer:create"\n'
    assert entry in (EXAMPLE / "pyproject.toml").read_text()
    assert entry in guide
    assert f"```yaml\n{SETTINGS}```" in guide


@pytest.mark.usefixtures("installed")
def test_every_settings_block_of_the_guide_builds() -> None:
    guide = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"```yaml\n(scheduling:.*?)```", guide, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        build_scheduler(SchedulingSettings.model_validate(yaml.safe_load(block)["scheduling"]), builtin_registry())


def test_the_guide_names_every_built_in_type() -> None:
    guide = (ROOT / "docs" / "plugins.md").read_text()
    assert [type_ for type_ in BUILTIN if f"`{type_}`" not in guide] == []


def test_every_reason_of_a_decision_is_explained() -> None:
    guide = (ROOT / "docs" / "plugins.md").read_text()
    table = guide.partition("| reason | |")[2].partition("\n\n")[0]
    code = "".join(path.read_text() for path in (ROOT / "router").rglob("*.py"))
    reasons = {"aggregated", "pd", *re.findall(r'"(pd-[a-z-]+)"', code)} - {"pd-profile-handler"}
    assert len(reasons) > 8
    assert {name for name in reasons if f"`{name}`" not in table} == set()
