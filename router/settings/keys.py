"""API keys in the settings: how an entry may be written, and files of them.

A key in the clear becomes its SHA-256 digest the moment it is validated: the tree never holds a usable key. No sentence
quotes what stands where a key may stand.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator

from router.errors import ConfigError
from router.settings.expected import expected
from router.settings.section import Section
from router.settings.words import Count

DIGEST_PREFIX = "sha256:"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_UNSENDABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""Line breaks, other control characters, and what is no text: no header field can hold them."""
_RIGHTS = ("name", "tenant", "objectives", "max_priority", "trusted")
_DIGITS = 24
_SHOWN_LENGTH = 40
_FLAGS = {"true": True, "false": False}


def digest(key: str) -> str:
    """SHA-256 of a key as it is compared, lower-case hex."""
    return hashlib.sha256(key.strip().encode()).hexdigest()


def sendable(key: str) -> bool:
    """Whether a client can send this key in a header field."""
    return _UNSENDABLE.search(key.strip()) is None


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
    """Objectives, of those in `flow_control.objectives`, that it may ask for with `x-llm-d-inference-objective`; the
    first counts when it asks for none, or for another."""
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
    if not sendable(text):
        raise ValueError(
            "holds a key with a line break or another control character, which no client can send in a header: "
            "give one of printable characters, like that of openssl rand -base64 32"
        )
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


def unlisted(key: ApiKeySettings, objectives: Collection[str]) -> str | None:
    """What is wrong with a key that may ask for an objective beside `objectives`, those that are configured; else None.

    Such a one would be priority 0 without a word.
    """
    odd = next((name for name in key.objectives if name not in objectives), None)
    if odd is None:
        return None
    mend = f"use one of {', '.join(sorted(objectives))}, or add it there" if objectives else "add it there"
    shown = repr(odd) if len(odd) <= _SHOWN_LENGTH else "a long one"
    return f"gives the key {key.name} an objective that flow_control.objectives does not list, {shown}: {mend}"


def read_key_file(
    path: Path, setting: str, *, others: Sequence[ApiKeySettings] = (), objectives: Collection[str] = ()
) -> list[ApiKeySettings]:
    """The keys of a file, one a line: ``KEY`` or ``sha256:HEX``, then any of the rights as ``word=value``.

    ``setting`` names the setting that named the file, ``others`` are keys beside the file's, ``objectives`` those that
    keys may name. Blank lines and lines that begin with ``#`` are skipped; a list of words has commas. Raises
    `ConfigError`, for a file without keys too: it would leave the router open.
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
    known = {key.digest: (key, setting.removesuffix("_file")) for key in others}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{setting} names {path}, whose line {number}"
        key = _key_of(words, where)
        before, place = known.setdefault(key.digest, (key, f"line {number}"))
        if before != key:
            raise ConfigError(
                f"{where} holds the key {key.name} again, with other rights than {place}: keep one of them"
            )
        if wrong := unlisted(key, objectives):
            raise ConfigError(f"{where} {wrong}")
        keys.append(key)
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
        # No more digits than it takes to be beyond all bounds.
        return int(value[:_DIGITS])
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
        if name in held:
            raise ConfigError(f"{where} has {name}= twice: keep one of them")
        held[name] = _right(name, value)
    try:
        return ApiKeySettings.model_validate(entry)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        if details["type"] == "value_error":
            raise ConfigError(f"{where} {details['ctx']['error']}") from None
        member = next((f" {part}=" for part in reversed(details["loc"]) if isinstance(part, str)), "")
        raise ConfigError(f"{where}{member} must be {expected(details)}") from None
