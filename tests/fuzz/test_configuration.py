"""Configuration of any kind is taken or refused in one sentence, whatever it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from router.errors import ConfigError
from router.preflight import preflight
from router.settings import Settings, load
from router.settings.environment import environment_names
from tests.support.fuzz import share


def _names(model: type[BaseModel]) -> list[str]:
    found: list[str] = []
    for name, member in model.model_fields.items():
        found.append(name)
        for inner in (member.annotation, *getattr(member.annotation, "__args__", ())):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found += _names(inner)
    return found


NAMES = st.sampled_from(sorted({*_names(Settings), "url", "role", "name", "port", "key", "type", "plugin", "weight"}))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.sampled_from(["http://127.0.0.1:1", "redis://h", "auto", "prefill", "/nowhere", "*", "null", "1e400", "true"])
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
ENDPOINTS = st.just(["http://127.0.0.1:1"]) | TREES
SECTIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({"endpoints": ENDPOINTS}) | st.just({})


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Sections of the tree with some of their own members, of any kind."""
    tree: dict[str, Any] = dict(draw(SECTIONS))
    for section in draw(st.lists(st.sampled_from(sorted(Settings.model_fields)), max_size=3)):
        model = Settings.model_fields[section].annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            members = draw(st.lists(st.sampled_from(sorted(model.model_fields)), max_size=3))
            tree[section] = {member: draw(TREES) for member in members}
        else:
            tree[section] = draw(TREES)
    return tree


def _taken(path: Path | None, environ: dict[str, str]) -> None:
    try:
        settings = load(path, environ=environ)
        if settings.tokenization.default is None and not settings.tokenization.models:
            preflight(settings)
    except ConfigError as error:
        assert str(error)
        assert "\n" not in str(error).strip()


@share(0.05)
@given(tree=configurations() | TREES)
def test_any_file(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8", errors="surrogatepass")
    _taken(path, {})


@share(0.02)
@given(st.binary(max_size=80) | st.text(alphabet=" \n\t:-[]{}&*!|>'\"%@`,?#ab1~.", max_size=60).map(str.encode))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    _taken(path, {})


@share(0.03)
@given(
    st.dictionaries(
        st.sampled_from(environment_names()),
        SCALARS.map(str) | TREES.map(json.dumps) | st.text(max_size=12),
        max_size=4,
    )
)
def test_any_environment(environ: dict[str, str]) -> None:
    _taken(None, {"KVROUTER_ENDPOINTS": "http://127.0.0.1:1"} | environ)
