"""Who serves which model, and the merged ``/v1/models``. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.core import EndpointState, ModelCard


def serving(model: str | None, states: Sequence[EndpointState]) -> list[EndpointState]:
    """The endpoints that serve `model`, in order. None asks for whatever an endpoint serves by default.

    An endpoint whose models are not discovered yet is taken to serve any: the engine then says 404 itself.
    """
    if model is None:
        return list(states)
    return [state for state in states if not state.models or model in state.models]


def merged(states: Iterable[EndpointState]) -> dict[str, ModelCard]:
    """Model id -> card over all endpoints, health aside (a list that flickers with it would make clients give up a
    model that comes back): aliases and adapters kept, the first endpoint's card wins, order of first appearance."""
    cards: dict[str, ModelCard] = {}
    for state in states:
        for model, card in state.models.items():
            cards.setdefault(model, card)
    return cards


def listing(states: Iterable[EndpointState]) -> bytes:
    """The body of ``GET /v1/models``, each card as its engine sent it."""
    return b'{"object":"list","data":[' + b",".join(card.raw for card in merged(states).values()) + b"]}"
