"""Plugin protocols: what a Filter, Scorer, Picker and Decider is. PURE.

A plugin is constructed once from its configuration (`Registry`), holds only its parameters, and is called
synchronously with frozen values. It never does I/O, never awaits, never reads a clock: `Context` carries the time.
Scorers take the whole list and return a list (64 candidates a request make a call each too dear).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from router.core import Candidate, Comparison, InferenceRequest, Leg, TokenizedPrompt


def _nobody(_decode: Candidate) -> Sequence[Candidate]:
    return ()


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about the request and the moment that a plugin may look at."""

    request: InferenceRequest
    prompt: TokenizedPrompt
    leg: Leg
    now: float
    rng: random.Random
    peer: Candidate | None = None
    """The candidate already chosen for the other leg, if any."""
    decoders: Sequence[Candidate] = ()
    """For a decider: who may decode, the chosen one first."""
    rank_prefillers: Callable[[Candidate], Sequence[Candidate]] = _nobody
    """For a decider: who may prefill for that decode candidate, best first as the prefill profile has it; empty when
    nobody may. Ranked when asked for, and not a second time."""


@runtime_checkable
class Filter(Protocol):
    """Two class attributes say what it means when a filter drops endpoints; both are False when absent.

    ``saturation = True``: it keeps endpoints from overload. When it leaves nobody the client is told to come back
    (429); any other filter that leaves nobody means that nobody can serve (503).
    ``preference = True``: those it drops could serve as well. They stay as the last fallbacks, least loaded first, and
    when it leaves nobody it is as if it were not there.
    """

    def filter(self, context: Context, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """Those that may be chosen, in the given order. Empty: nobody may."""
        ...


@runtime_checkable
class Scorer(Protocol):
    def score(self, context: Context, candidates: Sequence[Candidate]) -> list[float]:
        """One score in [0, 1] for each candidate, in order; higher is better. Values outside are clamped."""
        ...


@runtime_checkable
class Picker(Protocol):
    def pick(self, context: Context, candidates: Sequence[Candidate], scores: Sequence[float]) -> Sequence[Candidate]:
        """All candidates, best first: the first is chosen, the rest are the ordered fallbacks."""
        ...


class Verdict(msgspec.Struct, frozen=True):
    disaggregate: bool
    reason: str
    """A short word from a bounded set: a metric label."""
    decode: Candidate | None = None
    """Of `Context.decoders`: who should decode, where the decider knows better than the decode profile."""
    compared: Comparison | None = None
    """Both ways, where the decider reckoned them: for explanation."""


@runtime_checkable
class Decider(Protocol):
    def decide(self, context: Context, decode: Candidate) -> Verdict:
        """Whether the chosen decode candidate should have its prompt prefilled elsewhere."""
        ...
