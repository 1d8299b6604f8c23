"""API keys in the settings: how an entry may be written, and files of them.

A key in the clear becomes its SHA-256 digest the moment it is validated: the tree never holds a usable key. No sentence
quotes what stands where a key may stand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from router.errors import ConfigError
from router.settings.section import Section
from router.settings.words import Count

DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RIGHTS = ("name", "tenant", "objectives", "max_priority", "trusted")
_FLAGS = {"true": True, "false": False}


def digest(key: str) -> str:
    """SHA-256 of a key as it is compared, lower-case hex."""
    return hashlib.sha256(key.strip().encode()).hexdigest()


class RateSettings(Section):
    """What may be asked for in a minute and at one time. Null: as much as one likes."""

    requests_per_min: Count | None = None
    """Requests a minute."""
    tokens_per_min: Count | None = None
    """Tokens a minute, prompt and answer together. A request may begin while some are left, and what it takes beyond
    is waited for by the next."""
    concurrent: Count | None = None
    """Requests at one time in one router process."""


class ApiKeySettings(Section):
    """A key and its rights. May be written as the bare key, or as `sha256:` and its digest (`kvrouter hash-key`)."""

    name: str = Field(default="", pattern=r"^[A-Za-z0-9._:@/\-]{0,64}$")
    """Who it is: in the audit log and as the tenant. Empty: `key-` and the beginning of the digest."""
    key: SecretStr | None = None
    """The key itself; kept as its digest only. Give this or `sha256`."""
    sha256: SecretStr = SecretStr("")
    """Hex SHA-256 digest of the key, as `kvrouter hash-key` prints it, with or without `sha256:`."""
    tenant: str | None = Field(default=None, pattern=r"^[!-~]{1,128}$")
    """Whom its requests are counted for; several keys may have one. Null: the key's name."""
    objectives: tuple[str, ...] = ()
    """Objectives that it may ask for with `x-llm-d-inference-objective`; the first counts when it asks for none, or for
    another."""
    max_priority: int | None = Field(default=None, ge=-(2**31), le=2**31 - 1)
    """Highest importance that it may ask for with the body's `priority`: higher is more important here, and a body's
    `priority` is vLLM's, where lower is sooner, so 5 allows -5 and up. Null: none."""
    trusted: bool = False
    """It may set tenant, objective, SLOs and priority of each request, by headers and body."""

    rate: RateSettings | None = None
    """Its rates; null: those of `limits`."""

    @model_validator(mode="before")
    @classmethod
    def _as_digest(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        # Said here and not by pydantic, which would name the unknown member: it may be a key, put down wrongly.
        if not set(given) <= set(cls.model_fields):
            raise ValueError(f"has a member that no key has: use {', '.join(cls.model_fields)}")
        values = dict(given)
        key, known = values.pop("key", None), values.get("sha256")
        if (key is None) == (known in (None, "", SecretStr(""))):
            raise ValueError("needs either key or sha256, one of the two: `kvrouter hash-key` makes the second")
        if key is not None:
            values["sha256"] = digest(_text(key))
        else:
            hexadecimal = _text(known).strip().lower().removeprefix(DIGEST_PREFIX)
            if not _DIGEST.fullmatch(hexadecimal):
                raise ValueError("holds a digest that is not 64 hex digits: take what `kvrouter hash-key` prints")
            values["sha256"] = hexadecimal
        if not values.get("name"):
            values["name"] = f"key-{values['sha256'][:8]}"
        return values

    @property
    def digest(self) -> str:
        """Lower-case hex."""
        return self.sha256.get_secret_value()


def _text(value: Any) -> str:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        raise ValueError("must be text (put it in quotes)")  # noqa: TRY004 -- pydantic takes ValueError
    if not text.strip():
        raise ValueError("holds an empty key: leave it out, or give at least one character")
    return text


def _bare_key(value: Any) -> Any:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, (Mapping, ApiKeySettings)):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a key (text, put it in quotes) or a mapping")  # noqa: TRY004 -- as above
    return {"sha256": value} if value.strip().lower().startswith(DIGEST_PREFIX) else {"key": value}


def _distinct(keys: tuple[ApiKeySettings, ...]) -> tuple[ApiKeySettings, ...]:
    by_digest: dict[str, ApiKeySettings] = {}
    for key in keys:
        if by_digest.setdefault(key.digest, key) != key:
            raise ValueError(f"holds the key {key.name} twice, with different rights: keep one of them")
    return tuple(by_digest.values())


ApiKeys = Annotated[
    tuple[Annotated[ApiKeySettings, BeforeValidator(_bare_key)], ...],
    AfterValidator(_distinct),
]


def read_key_file(path: Path, setting: str) -> list[ApiKeySettings]:
    """The keys of a file, one a line: ``KEY`` or ``sha256:HEX``, then any of the rights as ``word=value``.

    ``setting`` names the setting that named the file. Blank lines and lines that begin with ``#`` are skipped; a list
    of words has commas. Raises `ConfigError`, for a file without keys too: it would leave the router open.
    """
    try:
        # Some editors put a byte order mark at the beginning, which would become part of the first key.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(
            f"{setting} names {path}, which cannot be read ({why}): give a readable file with one key a line"
        ) from None
    keys = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_key_of(words, f"{setting} names {path}, whose line {number}"))
    if not keys:
        raise ConfigError(
            f"{setting} names {path}, which holds no key and would leave the router open: "
            f"put a key on a line of its own, or leave {setting.rpartition('.')[2]} out"
        )
    return keys


def _right(name: str, value: str) -> Any:
    """The value as its type; what cannot be one stays text, for the validation to complain of."""
    if name == "objectives":
        return value.split(",")
    if (name == "max_priority" or name in RateSettings.model_fields) and value.removeprefix("-").isdecimal():
        return int(value)
    return _FLAGS.get(value, value) if name == "trusted" else value


def _key_of(words: list[str], where: str) -> ApiKeySettings:
    entry = _bare_key(words[0])
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in (*_RIGHTS, *RateSettings.model_fields) or not value:
            raise ConfigError(
                f"{where} has a word after the key that is no right: write KEY name=... tenant=... objectives=a,b "
                "max_priority=5 trusted=true requests_per_min=60 tokens_per_min=9000 concurrent=8, and a key with "
                "spaces as its digest (`kvrouter hash-key`)"
            )
        held = entry.setdefault("rate", {}) if name in RateSettings.model_fields else entry
        held[name] = _right(name, value)
    try:
        return ApiKeySettings.model_validate(entry)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        member = f" {details['loc'][0]}=" if details["loc"] else ""
        why = str(details["ctx"]["error"]) if details["type"] == "value_error" else f"is wrong ({details['msg']})"
        raise ConfigError(f"{where}{member} {why}") from None
