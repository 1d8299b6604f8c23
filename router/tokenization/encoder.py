"""Text -> token ids with the model's own tokenizer.

fastokens encodes several times faster than HF ``tokenizers`` and releases the GIL while it does, so it comes first; but
only after it has given the same ids on a set of probes, because a token that differs changes every block hash after
it. Where it differs or cannot load a tokenizer, HF encodes, through the one call of it that releases the GIL.
"""

from __future__ import annotations

import logging
import sys
from array import array
from collections.abc import Iterable
from typing import Any, Protocol

import tokenizers

log = logging.getLogger(__name__)

_SEGMENT_CACHE_BYTES = 32 * 1024 * 1024
_PROBES = (
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "line\nbreaks\r\n\n\n  and\ttabs\u00a0\u3000",
    "It's they're I'M we'Ll 1234567890 3.14159 1,000,000",
    "naïve café Straße ﬁne Å e\u0301 Ω İstanbul",
    "日本語のテキスト、中文字符。한국어 ภาษาไทย עברית العربية",
    "😀👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈 \U0001f1e9\U0001f1ea\ufe0f",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # note\n\n\n",
    "https://example.com/a?b=c&d=%20#e <html><!-- x --></html> \\n \\u0041",
    "a" * 300 + " " * 40 + "\n" * 20 + "=" * 90,
    "\x00\x01\x7f\u200b\ufeff\ufffd\u2028\uffff",
)


class Encoder(Protocol):
    """Not bound to a thread; `encode` may run in several at once."""

    special_ids: frozenset[int]
    """Ids of the added tokens: text is split at them before anything else, so ids up to one never depend on what
    follows it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        """Ids as ``array('I')``."""
        ...


class HfEncoder:
    """The reference: HF ``tokenizers``."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # What a file says of truncation and padding is for training; an engine encodes without either.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.special_ids = frozenset(tokenizer.get_added_tokens_decoder())

    def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        # `encode` holds the GIL all the while, `encode_batch_fast` does not.
        encodings: list[Any] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return array("I", encodings[0].ids)


class FastEncoder:
    """fastokens, with its exact cache of the text segments between added tokens."""

    def __init__(self, tokenizer_json: str, special_ids: frozenset[int]) -> None:
        import fastokens  # type: ignore[import-untyped]  # here, because some platforms have none

        self._tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.enable_segment_cache(_SEGMENT_CACHE_BYTES)
        self.special_ids = special_ids

    def encode(self, text: str, *, add_special_tokens: bool) -> array[int]:
        flat, _ = self._tokenizer.encode_batch_flat([text], add_special_tokens=add_special_tokens)
        ids = array("I")
        ids.frombytes(flat)
        if sys.byteorder == "big":
            ids.byteswap()
        return ids


def best_encoder(tokenizer: tokenizers.Tokenizer, name: str) -> Encoder:
    """fastokens if it agrees with HF on the probes, else HF with a warning that names `name` and the reason."""
    reference = HfEncoder(tokenizer)
    try:
        fast = FastEncoder(tokenizer.to_str(), reference.special_ids)
    except ImportError:
        log.warning("tokenizer %s: fastokens is not installed, long prompts will encode several times slower", name)
        return reference
    except (ValueError, RuntimeError, NotImplementedError, TypeError) as error:
        log.warning("tokenizer %s: fastokens cannot load it (%s), using HF tokenizers", name, type(error).__name__)
        return reference
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if differing := _first_difference(reference, fast, _probes(added)):
        log.warning("tokenizer %s: fastokens differs on probe %d, using HF tokenizers", name, differing - 1)
        return reference
    return fast


def _first_difference(reference: Encoder, other: Encoder, probes: Iterable[str]) -> int:
    """1 + the index of the first probe on which the two differ, or 0."""
    for position, probe in enumerate(probes, start=1):
        for special in (False, True):
            if other.encode(probe, add_special_tokens=special) != reference.encode(probe, add_special_tokens=special):
                return position
    return 0


def _probes(added: list[str]) -> list[str]:
    wrapped = [f"{token}user\n Hi{token}{token} \n{token}x" for token in added[:64]]
    return [*_PROBES, *wrapped, "".join(f"{token}{probe}" for token, probe in zip(added, _PROBES, strict=False))]
