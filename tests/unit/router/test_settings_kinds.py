"""Every key of the tree takes values of its own kind and no others, and says so; text is a number in the environment
alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from router.errors import ConfigError
from router.settings import Settings, dump, load

ONE = {"endpoints": ["http://127.0.0.1:8001"]}


class Leaf(NamedTuple):
    path: tuple[str, ...]
    kinds: frozenset[str]
    """Of YAML: null, bool, int, float, text, list, mapping."""

    @property
    def dotted(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return "KVROUTER_" + "__".join(self.path).upper()


def kinds(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) in (tuple, list):
        yield "list"
    elif get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        yield "mapping"
    elif get_origin(annotation) is Literal:
        for value in get_args(annotation):
            yield "bool" if isinstance(value, bool) else "text"
    elif isinstance(annotation, type):
        if issubclass(annotation, (Enum, str, SecretStr)):
            yield "text"
        else:
            yield from {NoneType: ["null"], bool: ["bool"], int: ["int"], float: ["int", "float"]}[annotation]
    else:
        for part in get_args(annotation):
            if isinstance(part, type) or get_args(part):
                yield from kinds(part)


def leaves(model: type[BaseModel] = Settings, above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from leaves(annotation, (*above, name))
        else:
            yield Leaf((*above, name), frozenset(kinds(annotation)))


LEAVES = list(leaves())
OF_KIND: dict[str, list[Any]] = {
    "null": [None],
    "bool": [True, False],
    "int": [0, 1, -1, 5, 2**70],
    "float": [0.0, 1.0, -2.5, 1e308, float("nan"), float("inf"), float("-inf")],
    "text": ["", "5", "0.5", "true", "null", "30s", "a b"],
    "list": [[], [1], ["x"], [[]]],
    "mapping": [{}, {"a": 1}, {"a": {"b": []}}],
}


def nested(leaf: Leaf, value: Any) -> dict[str, Any]:
    tree: Any = value
    for key in reversed(leaf.path):
        tree = {key: tree}
    return dict(tree)


def of_file(path: Path, values: dict[str, Any]) -> Settings:
    path.write_text(yaml.safe_dump(ONE | values), encoding="utf-8")
    return load(path, environ={})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinds") / "kv.yaml"


def test_the_tree_is_walked_whole() -> None:
    assert len(LEAVES) > 120
    assert {"server.port", "pd.enabled", "flow_control.tenant_weights", "scheduling.profiles.decode.picker"} <= {
        leaf.dotted for leaf in LEAVES
    }


@given(st.data())
def test_a_value_of_another_kind_is_refused_in_one_sentence_that_names_the_key(file: Path, data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from(LEAVES))
    wrong = sorted(OF_KIND.keys() - leaf.kinds - ({"null"} if len(leaf.path) == 1 else set()))
    value = data.draw(st.sampled_from(OF_KIND[data.draw(st.sampled_from(wrong))]))
    if value == {} and "list" not in leaf.kinds and "mapping" not in leaf.kinds and len(leaf.path) == 1:
        return
    with pytest.raises(ConfigError) as caught:
        of_file(file, nested(leaf, value))
    said = str(caught.value)
    assert said.startswith((f"{leaf.dotted} ({file} line ", f"{leaf.dotted}["))
    assert "\n" not in said


@given(st.data())
def test_no_number_is_taken_that_no_clock_and_no_counter_could_hold(file: Path, data: st.DataObject) -> None:
    leaf = data.draw(st.sampled_from([leaf for leaf in LEAVES if {"int", "float"} & leaf.kinds]))
    value = data.draw(st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e300, 2**70, -(2**70), -1]))
    try:
        of_file(file, nested(leaf, value))
    except ConfigError as error:
        assert str(error).startswith(f"{leaf.dotted} (")
    else:
        pytest.fail(f"{leaf.dotted} took {value}")


@given(st.sampled_from([leaf for leaf in LEAVES if "int" in leaf.kinds]), st.integers(1, 400), st.data())
def test_the_environments_text_is_the_number_that_the_file_holds(
    file: Path, leaf: Leaf, number: int, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from([str(number), f" {number} ", f"+{number}"]))

    def outcome(made: Any) -> Any:
        try:
            return dump(made())
        except ConfigError as error:
            # Where it stands is the one difference.
            return str(error).partition(" (")[0], str(error).partition(") ")[2]

    written = outcome(lambda: of_file(file, nested(leaf, number)))
    said = outcome(lambda: load(environ={leaf.variable: text, "KVROUTER_ENDPOINTS": "http://127.0.0.1:8001"}))
    assert said == written


@given(
    st.sampled_from([leaf for leaf in LEAVES if {"int", "float"} & leaf.kinds and "bool" not in leaf.kinds]),
    st.sampled_from(["true", "yes", "1_000", "0x10", "ten", "5s", "[5]", '"5"', "1,5", "--1", "1e999"]),
)
def test_what_reads_like_no_number_is_none_in_the_environment_either(leaf: Leaf, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={leaf.variable: text, "KVROUTER_ENDPOINTS": "http://127.0.0.1:8001"})
    assert leaf.dotted in str(caught.value)
    assert leaf.variable in str(caught.value)


@given(st.sampled_from([leaf for leaf in LEAVES if "bool" in leaf.kinds]), st.data())
def test_truth_has_its_words_in_the_environment(leaf: Leaf, data: st.DataObject) -> None:
    truth = data.draw(st.booleans())
    word = data.draw(st.sampled_from(["true", "TRUE", "yes", "on", "1"] if truth else ["false", "no", "off", "0"]))
    made = load(
        environ={
            "KVROUTER_ENDPOINTS": '[{"url": "http://127.0.0.1:8001"}]',
            leaf.variable: word,
        }
    )
    value: Any = made
    for key in leaf.path:
        value = getattr(value, key)
    assert value is truth


@pytest.mark.parametrize("leaf", [pytest.param(leaf, id=leaf.dotted) for leaf in LEAVES])
def test_a_default_written_out_is_the_default(leaf: Leaf) -> None:
    value: Any = dump(Settings())
    for key in leaf.path:
        value = value[key]
    if leaf.path == ("endpoints",) or value in (None, "", "**********"):
        return
    text = value if isinstance(value, str) else json.dumps(value)
    assert dump(load(environ={leaf.variable: text, "KVROUTER_ENDPOINTS": "http://127.0.0.1:8001"})) == dump(
        load(environ={"KVROUTER_ENDPOINTS": "http://127.0.0.1:8001"})
    )


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        (
            {"SERVER__PORT__X": "1"},
            "KVROUTER_SERVER__PORT__X (environment) is not a setting: KVROUTER_SERV",
        ),
        ({"ENDPOINTS__0__URL": "http://a"}, "KVROUTER_ENDPOINTS__0__URL (environment) is not a setting: KVROUTER_ENDP"),
        (
            {"SERVER__PROT": "1"},
            "KVROUTER_SERVER__PROT (environment) is not a setting: did you mean KVROUTER_SERV",
        ),
        (
            {"FLOW_CONTROL__TENANT_WEIGHTS": '{"a": 1, "a": 2}'},
            "KVROUTER_FLOW_CONTROL__TENANT_WEIGHTS (environment) h",
        ),
    ],
)
def test_mistakes_of_the_environment_name_the_variable(environ: dict[str, str], sentence: str) -> None:
    named = {f"KVROUTER_{name}": value for name, value in environ.items()}
    with pytest.raises(ConfigError) as caught:
        load(environ={"KVROUTER_ENDPOINTS": "http://a:1", **named})
    assert str(caught.value).startswith(sentence)


def test_words_of_a_free_mapping_may_stand_in_variables_of_their_own() -> None:
    made = load(environ={"KVROUTER_ENDPOINTS": "http://a:1", "KVROUTER_TOKENIZATION__MODELS__LLAMA": "org/llama"})
    assert made.tokenization.models == {"llama": "org/llama"}
