"""Reading request bodies: JSON to checked values, with vLLM's own words for what is wrong."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

from loadtest.simulator.api.exchange import ApiError


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """What a generation request asks for, whatever its route."""

    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    min_tokens: int
    ignore_eos: bool
    n: int
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    keep_stop: bool
    return_token_ids: bool
    cache_salt: str | None
    priority: int
    kv_transfer_params: Any


def invalid(message: str, param: str, value: Any = None, *, show_value: bool = True) -> ApiError:
    """vLLM's ValueError form: the message with the parameter's name (and value) behind it."""
    tail = f" (parameter={param}, value={value})" if show_value else f" (parameter={param})"
    return ApiError(400, message + tail, "BadRequestError", param)


def _schema_error(kind: str, where: str, message: str, given: str, extra: str = "") -> ApiError:
    detail = f"{{'type': '{kind}', 'loc': '{where}', 'msg': '{message}', 'input': {given}{extra}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", where)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"'<dict of {len(value)} items>'"
    if isinstance(value, list):
        return f"'<list of {len(value)} items>'"
    return repr(value)


class _Form(msgspec.Struct):
    type: str | None = None
    json_schema: dict[str, Any] | None = None


class _Known(msgspec.Struct):
    """Types of the fields that some route looks into; all others are taken as they come."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None
    stop_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: _Form | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    system: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    request_id: str | None = None
    top_n: Annotated[int, msgspec.Meta(ge=0)] | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=8192)] | None = None
    sampling_params: dict[str, Any] | None = None


def check_types(body: dict[str, Any]) -> None:
    """Raises ApiError if a known field is not of its type."""
    try:
        msgspec.convert(body, _Known)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        where = f"body.{path.rstrip('`')}"
        raise ApiError(400, f"1 validation error:\n  {where}: {message}", "Bad Request", where) from error


def parse_json(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises ApiError."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = json.loads(raw)
        except json.JSONDecodeError as error:
            extra = f", 'ctx': {{'error': '{error.msg}'}}"
            where = f"body.{error.pos}"
            raise _schema_error("json_invalid", where, "JSON decode error", _shown({}), extra) from error
        except (ValueError, RecursionError) as error:
            # Bytes that are no UTF-8, too deep nesting, and numbers of more digits than Python reads.
            raise ApiError(400, "There was an error parsing the body", "Bad Request") from error
    if not isinstance(value, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _schema_error("model_attributes_type", "body", message, _shown(value))
    check_types(value)
    return value


def require(body: dict[str, Any], name: str) -> Any:
    if name not in body:
        raise _schema_error("missing", f"body.{name}", "Field required", _shown(body))
    return body[name]


def require_list(body: dict[str, Any], name: str) -> list[Any]:
    value = require(body, name)
    if not isinstance(value, list):
        raise _schema_error("list_type", f"body.{name}", "Input should be a valid list", _shown(value))
    return value


def number(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole:
        raise _schema_error("int_parsing", f"body.{name}", "Input should be a valid integer", _shown(value))
    return int(value)


def _max_tokens(body: dict[str, Any], names: tuple[str, ...], max_model_len: int) -> int | None:
    values = [number(body, name) for name in names]
    found = next((v for v in values if v is not None), None)
    if found is None:
        return None
    if found < 1:
        raise invalid(f"max_tokens must be at least 1, got {found}.", "max_tokens", found)
    if found > max_model_len:
        text = (
            f"max_tokens={found} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens."
        )
        raise invalid(text, "max_tokens", found)
    return found


def _stream_options(body: dict[str, Any]) -> tuple[bool, bool]:
    options = body.get("stream_options")
    if options is None:
        return False, False
    if not body.get("stream"):
        text = "Stream options can only be defined when `stream=True`."
        raise invalid(text, "stream_options", show_value=False)
    usage = bool(options.get("include_usage"))
    return usage, usage and bool(options.get("continuous_usage_stats"))


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    if stop is None:
        return ()
    return tuple(s for s in ([stop] if isinstance(stop, str) else stop) if s)


def sampling(
    body: dict[str, Any],
    model: str,
    max_model_len: int,
    *,
    limits: tuple[str, ...] = ("max_completion_tokens", "max_tokens"),
    default_max_tokens: int | None = None,
) -> Sampling:
    """Checks what chat and completion requests have in common.

    `limits`: names of the token limit, the first given one holds.
    """
    temperature = body.get("temperature")
    if isinstance(temperature, (int, float)) and temperature < 0:
        raise invalid(f"temperature must be non-negative, got {float(temperature)}.", "temperature", float(temperature))
    include_usage, continuous = _stream_options(body)
    max_tokens = _max_tokens(body, limits, max_model_len)
    n = number(body, "n")
    n = 1 if n is None else n
    if not 1 <= n <= 128:
        raise invalid(f"n must be at least 1, got {n}.", "n", n)
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt", salt)
    seed = number(body, "seed")
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise invalid("seed must fit into 64 bits.", "seed", show_value=False)
    return Sampling(
        model=model,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=continuous,
        max_tokens=default_max_tokens if max_tokens is None else max_tokens,
        min_tokens=number(body, "min_tokens") or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        n=n,
        seed=seed,
        stop=_stops(body),
        stop_token_ids=tuple(body.get("stop_token_ids") or ()),
        keep_stop=bool(body.get("include_stop_str_in_output")),
        return_token_ids=bool(body.get("return_token_ids")),
        cache_salt=salt,
        priority=number(body, "priority") or 0,
        kv_transfer_params=body.get("kv_transfer_params"),
    )
