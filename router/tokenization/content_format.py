"""Whether a chat template wants message content as a string or as a list of parts. PURE.

The answer decides what the template is given: ``"openai"`` templates loop over a message's parts, the others print the
content. It must be the engine's answer, because it changes the rendered text, so this follows the detection rule of
vLLM 0.32: a template takes parts if it has a loop over ``message.content`` (directly, through a filter, a test or a
slice), over a macro parameter that receives it, or, outside of macros, over a variable named ``content``; where
``message`` is the variable of a loop over ``messages`` or over anything assigned from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


class _UnexpectedShape(Exception):
    """A loop unpacks where a plain variable was expected; vLLM then takes the default."""


def detect_content_format(tree: nodes.Template) -> ContentFormat:
    """The format for a parsed template; ``"string"`` where nothing tells."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _UnexpectedShape:
        return "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    message_names = list(_message_names(tree))
    macro_loops = _macro_content_parameters(tree, message_names)
    for loop in tree.find_all(nodes.For):
        if any(_reaches(loop.iter, name, "content") for name in message_names):
            _plain_name(loop.target)
            return True
        if not isinstance(loop.iter, nodes.Name):
            continue
        in_macro = macro_loops.get(id(loop))
        if (in_macro is None and loop.iter.name == "content") or (in_macro and loop.iter.name in in_macro):
            _plain_name(loop.target)
            return True
    return False


def _message_names(tree: nodes.Template) -> Iterator[str]:
    lists = list(_assigned_from(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        if any(_reaches(loop.iter, name) for name in lists):
            yield _plain_name(loop.target)


def _assigned_from(tree: nodes.Template, name: str) -> Iterator[str]:
    """`name` and every variable that is assigned from it or from another such variable."""
    found = [name]
    yield name
    for source in found:
        for assign in tree.find_all(nodes.Assign):
            if _reaches(assign.node, source):
                target = _plain_name(assign.target)
                yield target
                if target not in found:
                    found.append(target)


def _macro_content_parameters(tree: nodes.Template, message_names: list[str]) -> dict[int, set[str]]:
    """id of each loop inside a macro -> the macro's parameters that some call fills with a message's content."""
    loops: dict[int, set[str]] = {}
    calls = list(tree.find_all(nodes.Call))
    for macro in tree.find_all(nodes.Macro):
        parameters = [argument.name for argument in macro.args]
        filled: set[str] = set()
        for call in calls:
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            given = [*zip(parameters, call.args, strict=False)]
            given += [(keyword.key, keyword.value) for keyword in call.kwargs if isinstance(keyword, nodes.Keyword)]
            for parameter, value in given:
                if parameter in parameters and any(_reaches(value, name, "content") for name in message_names):
                    filled.add(parameter)
        for loop in macro.find_all(nodes.For):
            loops.setdefault(id(loop), set()).update(filled)
    return loops


def _reaches(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether `node` is the variable `name` (its attribute or item `key`), seen through filters, tests and slices."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reaches(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reaches(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return _reaches_name(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _reaches_name(node.node, name) and node.attr == key


def _reaches_name(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _plain_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _UnexpectedShape
    return target.name
