"""Standing: what was said of a pool lately stands until it is carried out or has not been needed for long. PURE.

Who acts on plans may take longer than one cycle, and chance moves the forecast from each to the next. What was asked
for stands for the stabilization window after it was last needed; that some were let go stands while the rest carries
the load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from router.capacity.judgement import Judged, carries
from router.capacity.plan import Key, cost_of

Counts = Mapping[Key, int]


class Standing:
    """One pool. Times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._asked: dict[frozenset[tuple[Key, int]], float] = {}
        """What a pool was to have -> when it was last needed."""
        self._going: tuple[Counts, Counts] | None = None
        """What there was when some were let go, and what was to stay."""

    def asked(self, now: float, counts: Counts) -> None:
        """More than there is was needed, or something else."""
        self._going = None
        self._asked[frozenset(counts.items())] = now

    def words(self, now: float, window_s: float) -> list[dict[Key, int]]:
        """What was asked for within the window."""
        self._asked = {counts: at for counts, at in self._asked.items() if now - at < window_s}
        return [dict(counts) for counts in self._asked]

    def let_go(self, there: Counts, stays: Counts) -> None:
        self._asked.clear()
        self._going = (dict(there), dict(stays))

    def staying(self, present: Counts) -> Counts | None:
        """What is to stay while others have yet to go; None where nothing is to go, or more has come since."""
        if self._going is None:
            return None
        there, stays = self._going
        open_ = any(count > stays.get(key, 0) for key, count in present.items())
        grown = any(count > there.get(key, 0) for key, count in present.items())
        if not open_ or grown:
            self._going = None
        return stays if open_ and not grown else None

    def enough(self, one: Judged) -> Counts | None:
        """The same where it carries the load; where it does not, nobody is to go any more."""
        stays = self.staying(one.present)
        if stays is None:
            return None
        left = {key: min(count, one.present.get(key, 0)) for key, count in stays.items()}
        if carries(one, left):
            return stays
        self._going = None
        return None


def steadied(one: Judged, desired: Counts, words: Iterable[Counts], left: Mapping[str, int]) -> dict[Key, int]:
    """In each role the dearest of what is needed now and what stands, if it carries as much and the quotas have
    that much left; nothing present goes. `left`: hardware -> accelerators beside what is desired."""
    found = {key: count for key, count in desired.items() if key[0] not in one.form.roles}
    for role in one.form.roles:
        best = {key: count for key, count in desired.items() if key[0] is role}
        enough = min(one.rate, one.sizings[role].capacity(one.counts(role, best)))
        for word in words:
            other = {
                key: max(word.get(key, 0), one.present.get(key, 0)) for key in {*word, *one.present} if key[0] is role
            }
            dearer = cost_of(one.view, other) > cost_of(one.view, best) + 1e-9
            bounded = sum(other.values()) <= max(one.view.rules.most, sum(best.values()))
            if dearer and bounded and one.sizings[role].capacity(one.counts(role, other)) >= enough:
                best = other
        found |= best
    found = {key: count for key, count in found.items() if count}
    for hardware, free in left.items():
        size = {v.name: v.accelerators for v in one.view.variants if v.hardware == hardware}
        besides = sum(size.get(key[1], 0) * (count - desired.get(key, 0)) for key, count in found.items())
        if besides > max(free, 0):
            return {key: count for key, count in desired.items() if count}
    return found
