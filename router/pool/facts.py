"""An engine's own account of itself: ``/v1/models``, ``/version``, ``/kv_event_sources``. PURE.

Each reader takes the response text and raises `FactsError` when it is not what the path promises: the caller then
keeps what it knew. Fields that nobody needs may be missing or new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from router.core import ModelCard
from router.pool.spec import EndpointSpec, KvEventsSpec


class FactsError(Exception):
    """An answer of another shape than its path promises. The message holds no part of it."""


class KvEventSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank publishes its KV events; addresses can be dialled as they are."""

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    global_rank: int | None = None


class _Listing(msgspec.Struct):
    data: list[msgspec.Raw]


class _Card(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Version(msgspec.Struct):
    version: str


class _Source(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str | None = None
    enable_kv_cache_events: bool = True


def read_models(text: str) -> dict[str, ModelCard]:
    """``{"data": [{"id", "root", "parent", "max_model_len", ...}]}`` -> id -> card, in the engine's order.

    A length that no model can have counts as not told: believed, every prompt would be too long.
    """
    cards: dict[str, ModelCard] = {}
    for raw in _decode(text, _Listing).data:
        card = _decode(raw, _Card)
        length = card.max_model_len if card.max_model_len is not None and card.max_model_len > 0 else None
        cards.setdefault(
            card.id, ModelCard(id=card.id, root=card.root, parent=card.parent, max_model_len=length, raw=bytes(raw))
        )
    return cards


def read_version(text: str) -> str:
    answer: _Version = _decode(text, _Version)
    return answer.version[:64]


def read_flag(text: str) -> bool:
    """``{"is_paused": true}`` or ``{"is_sleeping": false}``: the one truth value in it."""
    flags = [value for value in _decode(text, dict[str, Any]).values() if isinstance(value, bool)]
    if len(flags) != 1:
        raise FactsError("not one truth value")
    return flags[0]


def read_event_sources(text: str, host: str) -> dict[int, KvEventSource]:
    """``{"<global rank>": {"endpoint", "replay_endpoint", "topic", ...}}`` -> global rank -> source.

    Empty when the engine publishes nothing. `host` takes the place of an address that only says "all interfaces".
    """
    sources = {}
    for key, entry in _decode(text, dict[str, _Source]).items():
        if not (key.isascii() and key.isdigit() and len(key) < 6):
            raise FactsError("a rank is not a number")
        if not entry.enable_kv_cache_events or not entry.endpoint:
            continue
        rank = int(key)
        sources[rank] = KvEventSource(
            endpoint=dialable(entry.endpoint, host),
            replay_endpoint=dialable(entry.replay_endpoint, host) if entry.replay_endpoint else None,
            topic=entry.topic or "",
            global_rank=rank,
        )
    return sources


def configured_source(spec: EndpointSpec, events: KvEventsSpec, local: int, global_rank: int | None) -> KvEventSource:
    """The source of one rank when the configuration names the first one's."""
    replay = events.replay_endpoint
    return KvEventSource(
        endpoint=_port_plus(dialable(events.endpoint, spec.host), local),
        replay_endpoint=_port_plus(dialable(replay, spec.host), local) if replay else None,
        topic=events.topic,
        global_rank=global_rank,
    )


def dialable(address: str, host: str) -> str:
    """A bind address made one to connect to: ``tcp://*:5557`` -> ``tcp://<host>:5557``."""
    found = re.fullmatch(r"tcp://(\*|0\.0\.0\.0|\[::\]):(\d+)", address)
    if found is None:
        return address
    return f"tcp://[{host}]:{found[2]}" if ":" in host else f"tcp://{host}:{found[2]}"


def _port_plus(address: str, offset: int) -> str:
    found = re.fullmatch(r"(tcp://.*:)(\d+)", address)
    return address if found is None else f"{found[1]}{int(found[2]) + offset}"


def _decode(data: str | msgspec.Raw, shape: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=shape)
    except (msgspec.DecodeError, UnicodeError) as error:
        # msgspec names the path and the types, never the values.
        raise FactsError(str(error)) from None


def override_models(names: tuple[str, ...], found: Mapping[str, ModelCard]) -> dict[str, ModelCard]:
    """The cards of an endpoint that is configured to serve under these names; the engine's own where it has them."""
    return {name: found.get(name) or _made_card(name) for name in names}


def _made_card(name: str) -> ModelCard:
    raw = msgspec.json.encode({"id": name, "object": "model", "created": 0, "owned_by": "kvrouter"})
    return ModelCard(id=name, raw=raw)
