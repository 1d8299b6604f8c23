"""Loading a tokenizer and its chat template from a folder, a file, or the Hugging Face hub.

Reads what transformers reads: ``tokenizer.json``, ``tokenizer_config.json``, ``special_tokens_map.json``, and the chat
template from ``chat_template.jinja`` (with ``additional_chat_templates/``), ``chat_template.json`` or the
configuration. Weights are never fetched. Everything that is wrong is a `ConfigError` that says the mend.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from pathlib import Path
from typing import Any

import tokenizers

from router.errors import ConfigError
from router.tokenization.encoder import best_encoder
from router.tokenization.local import LocalTokenizer
from router.tokenization.rendering import ChatRenderer
from router.tokenization.template import ChatTemplate, Now, TemplateSyntaxError

log = logging.getLogger(__name__)

_HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
# transformers hands exactly these to a template.
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Models whose chat prompts vLLM builds in code: their template, if they ship one, is not what an engine renders.
_RENDERED_IN_CODE = frozenset({"gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_k3", "inkling"})
_MEND = "give a folder with a tokenizer.json, or a Hugging Face model id"


def load_tokenizer(source: str, *, now: Now = datetime.now, offline: bool = False) -> LocalTokenizer:
    """The tokenizer at `source`: a folder, a ``tokenizer.json`` or a hub id (its cache is used first).

    `offline` forbids the network. Raises `ConfigError`. Blocks on disk and network: call it at the start, or off the
    event loop.
    """
    folder, tokenizer_file = _locate(source, offline)
    config = _read_json(folder / "tokenizer_config.json") or {}
    tokenizer = _read_tokenizer(tokenizer_file, config, source)
    return LocalTokenizer(source, best_encoder(tokenizer, source), _renderer(folder, config, source, now))


def _locate(source: str, offline: bool) -> tuple[Path, Path]:
    path = Path(source).expanduser()
    if path.is_file():
        return path.parent, path
    if path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(f"tokenizer: the folder {source} holds no tokenizer.json; {_MEND}.")
        return path, path / "tokenizer.json"
    if source.startswith(("/", ".", "~")) or source.count("/") > 1 or source.endswith(".json"):
        raise ConfigError(f"tokenizer: {source} does not exist; {_MEND}.")
    folder = _from_hub(source, offline)
    return folder, folder / "tokenizer.json"


def _from_hub(model_id: str, offline: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = Path(_snapshot(snapshot_download, model_id, offline))
    except (HFValidationError, ValueError):
        raise ConfigError(f"tokenizer: {model_id} is neither a path nor a model id; {_MEND}.") from None
    except OSError as error:
        # The hub's errors (not found, gated, offline, not cached) are all OSErrors.
        raise ConfigError(
            f"tokenizer: {model_id} could not be had from the Hugging Face hub ({type(error).__name__}); "
            f"check the name, the network and HF_TOKEN, or {_MEND}."
        ) from None
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"tokenizer: {model_id} on the hub has no tokenizer.json; {_MEND}.")
    return folder


def _snapshot(download: Any, model_id: str, offline: bool) -> str:
    """From the cache if it is there, so that a start needs no network a second time."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        cached: str = download(model_id, allow_patterns=list(_HUB_FILES), local_files_only=True)
        if offline or (Path(cached) / "tokenizer.json").is_file():
            return cached
    except LocalEntryNotFoundError:
        if offline:
            raise
    fetched: str = download(model_id, allow_patterns=list(_HUB_FILES))
    return fetched


def _read_tokenizer(path: Path, config: dict[str, Any], source: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare Exception for a file it cannot read
        raise ConfigError(f"tokenizer: {path} cannot be read ({error}); {_MEND}.") from None
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = [
        tokenizers.AddedToken(
            entry["content"],
            single_word=bool(entry.get("single_word", False)),
            lstrip=bool(entry.get("lstrip", False)),
            rstrip=bool(entry.get("rstrip", False)),
            normalized=bool(entry.get("normalized", True)),
            special=bool(entry.get("special", False)),
        )
        for _, entry in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0]))
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and entry["content"] not in known
    ]
    if missing:
        log.info("tokenizer %s: %d added tokens come from tokenizer_config.json", source, len(missing))
        tokenizer.add_tokens(missing)
    return tokenizer


def _renderer(folder: Path, config: dict[str, Any], source: str, now: Now) -> ChatRenderer | None:
    kind = (_read_json(folder / "config.json") or {}).get("model_type")
    if kind in _RENDERED_IN_CODE:
        log.warning("tokenizer %s: vLLM renders chats of %s in code, they are not tokenized here", source, kind)
        return None
    templates = {}
    for name, text in _template_sources(folder, config).items():
        try:
            templates[name] = ChatTemplate(text, now)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"tokenizer: the chat template {name!r} of {source} does not compile (line {error.lineno}: "
                f"{error.message}); mend the template or give another tokenizer."
            ) from None
    return ChatRenderer(templates, _special_tokens(folder, config)) if templates else None


def _template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Template name -> source. Files win over the configuration, as in transformers."""
    found: dict[str, str] = {}
    single = folder / "chat_template.jinja"
    if single.is_file():
        found["default"] = _read_text(single)
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[extra.stem] = _read_text(extra)
    if found:
        return found
    processor = (_read_json(folder / "chat_template.json") or {}).get("chat_template")
    for declared in (processor, config.get("chat_template")):
        if isinstance(declared, str):
            return {"default": declared}
        if isinstance(declared, dict):
            return {name: text for name, text in declared.items() if isinstance(text, str)}
        if isinstance(declared, list):
            return {
                entry["name"]: entry["template"]
                for entry in declared
                if isinstance(entry, dict) and isinstance(entry.get("template"), str)
            }
    return {}


def _special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and so on, as text. The separate map counts only beside a configuration of the older kind."""
    declared = dict(config)
    if "added_tokens_decoder" not in config:
        declared |= _read_json(folder / "special_tokens_map.json") or {}
    named = {}
    for key in _NAMED_TOKENS:
        value = declared.get(key)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            named[key] = value
    return named


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise ConfigError(f"tokenizer: {path} cannot be read ({type(error).__name__}); fetch it again.") from None


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"tokenizer: {path} cannot be read ({type(error).__name__}); fetch it again.") from None
    if not isinstance(read, dict):
        raise ConfigError(f"tokenizer: {path} does not hold a JSON object; fetch it again.")
    return read
