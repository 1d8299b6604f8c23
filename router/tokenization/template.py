"""One compiled chat template in a sandbox that gives templates what transformers gives them, and nothing more. PURE.

Templates are written against transformers' environment: block trimming, ``tojson`` without HTML escapes,
``raise_exception``, ``strftime_now``, loop controls, ``{% generation %}``. They come from model repositories, so they
run in jinja2's immutable sandbox. Compiled once, rendered from many threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from types import BuiltinMethodType
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from router.tokenization.content_format import ContentFormat, detect_content_format
from router.tokenization.errors import NotRenderable

Now = Callable[[], datetime]
"""Local wall-clock time: some templates print the date."""

_DICT_METHODS = frozenset(dir(dict))
# Formatting reaches into attributes, so the sandbox wraps it.
_STR_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))


class ChatTemplate:
    """A compiled template.

    Raises `TemplateSyntaxError` when it cannot be compiled (`router.tokenization.loader` says so as a `ConfigError`).
    """

    def __init__(self, source: str, now: Now) -> None:
        environment = _environment(now)
        tree = environment.parse(source)
        self.source = source
        self.content_format: ContentFormat = detect_content_format(tree)
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self._root = environment.from_string(source)
        self.wants_system_first = self._refuses_late_system()

    def render(self, variables: Mapping[str, Any]) -> str:
        """The prompt text. Raises `NotRenderable` when the template refuses or fails, for whatever it was given."""
        try:
            return self._root.render(variables)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # The template's own words may quote the prompt, so only the kind of error is passed on.
            raise NotRenderable(f"the chat template refused: {type(error).__name__}") from None
        except RecursionError:
            raise NotRenderable("the chat template recursed too deeply") from None

    def _refuses_late_system(self) -> bool:
        # vLLM asks the same question the same way before it converts an Anthropic conversation.
        turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
        try:
            self._root.render({"messages": turns, "add_generation_prompt": False})
        except TemplateError:
            return True
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return False
        return False


def _environment(now: Now) -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: now().strftime(layout)
    environment.globals["namespace"] = _Namespace
    environment.globals["dict"] = _Dict()
    return environment


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox with shortcuts for what chat templates do on every line.

    The general path asks a dozen ``isinstance`` questions for each ``message.role``, ``content.startswith`` or
    ``loop.last``. For a plain dict's keys, a string's own methods, a loop and a namespace the answers are known. What
    is underscored, formats strings or belongs to any other type takes the general path.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            # A dict's own methods win over its keys, as they do in jinja2.
            if attribute not in _DICT_METHODS:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
        elif kind is str:
            if attribute in _STR_METHODS:
                return getattr(obj, attribute)
        elif (kind is LoopContext or kind is _Namespace) and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(obj) is BuiltinMethodType and type(obj.__self__) is str and obj.__name__ in _STR_METHODS:
            # What jinja2 passes along for functions that ask for their context.
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            return obj(*args, **kwargs)
        return super().call(context, obj, *args, **kwargs)


class _GenerationTag(Extension):
    """``{% generation %}`` marks assistant text for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012  the attribute jinja2 asks for

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Namespace(Namespace):
    """jinja2's, without names that reach into Python."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _refuse_private(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


class _Dict:
    """``dict(...)`` and ``dict.fromkeys(...)`` without the type itself."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a chat template may not store a name that begins with an underscore")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateError(str(message))


__all__ = ["ChatTemplate", "Now", "TemplateSyntaxError"]
