"""What a value must be, in words, out of what validation said of it. PURE."""

from __future__ import annotations

from pydantic_core import ErrorDetails

_KINDS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text (put it in quotes)",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of names to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def expected(details: ErrorDetails) -> str:
    """What comes after "must be"."""
    context = details.get("ctx", {})
    match details["type"]:
        case "literal_error" | "enum":
            return str(context["expected"])
        case "greater_than":
            return f"more than {_number(context['gt'])}"
        case "greater_than_equal":
            return f"at least {_number(context['ge'])}"
        case "less_than_equal":
            return f"at most {_number(context['le'])}"
        case "string_too_short" | "too_short":
            return f"at least {_characters(context['min_length'])}"
        case "string_too_long" | "too_long":
            return f"at most {_characters(context['max_length'])}"
        case "string_pattern_mismatch":
            return f"of the form {context['pattern']}"
        case kind:
            return _KINDS.get(kind) or f"right ({details['msg']})"


def _number(value: float) -> str:
    return str(int(value) if value == int(value) else value)


def _characters(count: int) -> str:
    return f"{count} character{'' if count == 1 else 's'} long"
