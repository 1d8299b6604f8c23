"""Past: what a pool was found to need lately, and what that says of scaling in. PURE.

A forecast of steady traffic wanders with chance, for as long as its window is; a number of engines that just sufficed
all along a stabilization window need not suffice in the next. So a scale-in is planned for the greatest load of a
longer memory, as far as chance could bring it back: up to `_DEVIATIONS` of what chance does to a forecast above the
present. A real fall is followed at once down to there; while it is seen to be one, only what was found in the last part
of it is remembered. A demand that chance alone moves is then met by the same engines all the time, whatever its rate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from router.capacity.plan import Key

_MEMORY = 24.0
"""Stabilization windows that are remembered: two hours for five minutes."""
_FALL = 1 / 12
"""Part of a fall over which it makes little difference."""
_DEVIATIONS = 3.0
"""By which chance may bring a demand back: from as many below what it is as it is above at other times."""
_MOST_WINDOW = 512
_MOST_PEAKS = 1024
_REGRET_S = 3600.0
_REGRETTABLE = 1.15
"""A demand so many times the one of the scale-in is growth, and the scale-in was no mistake."""


class Entry(NamedTuple):
    """What would suffice for the dead band too."""

    at: float
    cost: float
    counts: Mapping[Key, int]


class Past:
    """One pool. Times are the caller's, in seconds, and do not go back."""

    def __init__(self) -> None:
        self._window: deque[Entry] = deque(maxlen=_MOST_WINDOW)
        self._since: float | None = None
        self._peaks: deque[tuple[float, float]] = deque(maxlen=_MOST_PEAKS)
        """(time, load): each is greater than all that came after it."""
        self._in_at = -math.inf
        self._in_rate = 0.0
        self._regret = 0.0
        self._regret_at = 0.0

    # Load

    def loaded(
        self, now: float, rate: float, work_s: float, stabilization_s: float, falling_s: float | None = None
    ) -> None:
        """`rate` requests a second must be carried now, each of which takes an engine so many seconds; for `falling_s`
        they have been getting fewer, and not by chance."""
        load = rate * work_s
        while self._peaks and self._peaks[-1][1] <= load:
            self._peaks.pop()
        self._peaks.append((now, load))
        memory = _MEMORY * stabilization_s
        if falling_s is not None:
            memory = min(memory, _FALL * falling_s)
        while self._peaks[0][0] < now - memory:
            self._peaks.popleft()

    def lasting(self, rate: float, work_s: float, chance: float) -> float:
        """The rate, of requests as they are now, that chance may bring back while the traffic stays what it is."""
        if not self._peaks or work_s <= 0.0:
            return rate
        return max(rate, min(self._peaks[0][1] / work_s, rate * (1.0 + _DEVIATIONS * chance)))

    # Changes

    def suffices(self, now: float, cost: float, counts: Mapping[Key, int], stabilization_s: float) -> None:
        """So much would be enough now, of what there is more of."""
        self._window.append(Entry(now, cost, counts))
        while self._window[0].at < now - stabilization_s:
            self._window.popleft()
        if self._since is None:
            self._since = now

    def unseen(self) -> None:
        """Nothing is known of a time, or something else came to be wanted: the time counts anew from the next look."""
        self._window.clear()
        self._since = None

    def greatest(self) -> Entry:
        """Of the window, which must not be empty."""
        return max(self._window, key=lambda entry: entry.cost)

    def known_s(self, now: float) -> float:
        """For how long what is there has been enough, look after look. The window's first entry tells less: looks come
        at intervals that do not divide it."""
        return 0.0 if self._since is None else now - self._since

    def scaled_in(self, now: float, rate: float) -> None:
        """From here on the time counts anew: one scale-in says nothing yet of the next."""
        self.unseen()
        self._in_at, self._in_rate = now, rate

    def scaled_out(self, now: float, rate: float) -> None:
        """More is needed; of a demand no greater than when less was thought to do, this is learnt from."""
        self.unseen()
        if now - self._in_at < _REGRET_S and rate < _REGRETTABLE * self._in_rate:
            self._regret = min(self.regret(now) + 0.1, 0.3)
            self._regret_at = now
        self._in_at = -math.inf

    def regret(self, now: float) -> float:
        """Added to the dead band since a scale-in had to be taken back; halves every `_REGRET_S`."""
        return float(self._regret * 0.5 ** ((now - self._regret_at) / _REGRET_S))
