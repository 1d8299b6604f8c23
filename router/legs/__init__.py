"""The legs of a request, each over its ordered fallbacks: `prefill`, `decode`, and `stored` responses.

A lease is taken before each attempt and released in that attempt's ``finally``. Retries happen only before the first
response byte. An engine's answer, errors included, goes to the client as it is.
"""

from router.legs.hand_off import HandOff
from router.legs.legs import Legs
from router.legs.prefill import EngineRefused
from router.legs.settings import LegSettings

__all__ = ["EngineRefused", "HandOff", "LegSettings", "Legs"]
