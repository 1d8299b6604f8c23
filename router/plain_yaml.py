"""YAML as it reads: no key twice, keys are text, and a number is what looks like one. PURE.

PyYAML follows YAML 1.1, where 22:22 is 1342, 0123 is 83, 1e3 is text and 2026-01-01 a date, and takes the last of two
equal keys.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_OURS = (f"{_TAG}int", f"{_TAG}float", f"{_TAG}timestamp")
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(([0-9][0-9_]*)?\.[0-9]+([eE][-+]?[0-9]+)?|[0-9][0-9_]*(\.|\.?[eE][-+]?[0-9]+))"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


class PlainLoader(yaml.SafeLoader):
    """For those who want its nodes. Raises `yaml.MarkedYAMLError` with the line of what is wrong."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key is no plain text", key)
            if key.tag != f"{_TAG}str":
                raise _error(f"the key {key.value} is no text (put it in quotes)", key)
            if key.value in seen:
                raise _error(f"{key.value} stands twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _error(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OURS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
PlainLoader.add_implicit_resolver(f"{_TAG}int", re.compile(rf"({_INT.pattern})\Z"), list("-+0123456789"))
PlainLoader.add_implicit_resolver(f"{_TAG}float", re.compile(rf"({_FLOAT.pattern})\Z"), list("-+0123456789."))


class _PlainDumper(yaml.SafeDumper):
    """Puts in quotes what either reader, ours or that of YAML 1.1, would take for a number."""


for _tag, _pattern in ((f"{_TAG}int", _INT), (f"{_TAG}float", _FLOAT)):
    _PlainDumper.add_implicit_resolver(_tag, re.compile(rf"({_pattern.pattern})\Z"), list("-+0123456789."))


class NotYaml(ValueError):
    """What is wrong with a text, in a few words and with its line."""


def load(text: str | bytes) -> Any:
    """The one document of `text` as plain values; None for an empty one. Raises `NotYaml`."""
    try:
        return yaml.load(text, PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYaml(f"{error.problem or error.context}" + (f" in line {mark.line + 1}" if mark else "")) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise NotYaml("it holds something that is no plain value") from None


def dump(value: Any) -> str:
    """Plain values as a text that `load` reads back, in their order.

    Letters beyond ASCII are escaped: PyYAML writes some of them as what it then reads as a line's end.
    """
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False)
