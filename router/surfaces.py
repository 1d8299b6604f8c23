"""Surfaces: what clients and administrators reach, one ASGI application for each listener."""

from __future__ import annotations

from typing import Any

from router.api.admin import AdminGiven, Administration
from router.api.front import Front
from router.api.gate import Surface
from router.api.keys import KeyRing
from router.api.lifecycle import Lifecycle
from router.api.reading import FrontSettings
from router.api.rest import Given, Rest, Siblings, View
from router.assembly import clients
from router.director import Director
from router.flowcontrol.key_limits import KeyLimits
from router.observability.events import AnswerObserver
from router.observability.metrics import CONTENT_TYPE
from router.ports import Clock
from router.settings import Settings


class Surfaces:
    def __init__(
        self,
        settings: Settings,
        *,
        view: View,
        lifecycle: Lifecycle,
        siblings: Siblings,
        administration: Administration,
        journey: Director,
        limits: KeyLimits,
        observer: AnswerObserver,
        clock: Clock,
    ) -> None:
        self._gates = clients.gates(settings, lambda: self.keys)
        keys, front_settings = clients.key_ring(settings), clients.front_settings(settings)
        self._fronts = {
            surface: Front(
                rest=Rest(
                    Given(
                        view=view,
                        lifecycle=lifecycle,
                        siblings=siblings,
                        metrics_content_type=CONTENT_TYPE,
                        admin=AdminGiven(administration, gate),
                        surface=surface,
                        protect_metrics=settings.server.protect_metrics,
                    )
                ),
                journey=journey,
                lifecycle=lifecycle,
                keys=keys,
                settings=front_settings,
                limits=limits,
                observer=observer,
                clock=clock,
                gate=gate,
                surface=surface,
            )
            for surface, gate in self._gates.items()
        }
        self._clients = next(front for surface, front in self._fronts.items() if surface is not Surface.ADMINISTRATION)
        self.asgi: Any = clients.with_cors(self._clients, settings)
        self.admin_asgi: Any = self._fronts.get(Surface.ADMINISTRATION)
        """What the listener of its own serves (`server.admin_port`); None: there is none."""

    @property
    def keys(self) -> KeyRing:
        """Of clients, in force now."""
        return self._clients.keys

    def apply(self, keys: KeyRing, admins: KeyRing, settings: FrontSettings) -> None:
        """In force from now on."""
        for front in self._fronts.values():
            front.keys = keys
            front.settings = settings
        for gate in self._gates.values():
            gate.admins = admins
