"""EngineModels: one model for each endpoint, learnt from what the router sees of its requests. PURE.

An observer. From dispatches, first tokens and ends it keeps what each engine has to do (who waits for its prefill and
who decodes, which blocks are in use and which would be evicted next), and fits the laws of `router.capacity.laws`:

- Prefill: engines take prompts in the order they come, so the time from one first token to the next, or from a
  dispatch to an engine without waiting prompts, was spent on that prompt and the decode steps that ran along.
- Decode step: the time of an answer less the prefills that fell into it, over its steps, against the mean batch and
  context meanwhile.
- Hand-off: the time from the decode leg's dispatch to its first token, less the step that gives it.

What plugins see of it is a frozen `EngineEstimate` for each endpoint, made anew only when something happened there.
The same models serve capacity planning: `profiles` and `load` keep what was learnt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from router.capacity.flights import Flight, Load
from router.capacity.laws import Laws, Profile, typical
from router.capacity.reuse import Reuse
from router.core import Candidate, Decision, EngineEstimate, InferenceRequest, Leg, TokenizedPrompt
from router.observability.events import Dispatched, Ended, FirstToken, LegFailed, Outcome

_TRUSTED = 0.5
_COMPARE = 8
"""First tokens between two looks at what is typical, while some endpoint has shown none."""
_MOST_FLIGHTS = 65_536


class EngineModels:
    """Implements `router.observability.events.Observer`. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], *, prior: Profile | None = None) -> None:
        self._clock = clock
        self._prior = prior or Profile()
        self._loads: dict[str, Load] = {}
        self._flights: dict[str, Flight] = {}
        self._known: dict[str, Profile] = {}
        self._unseen: set[str] = set()
        self._events = 0
        self._reuse = Reuse()

    # What is asked of it

    def estimate(self, endpoint_id: str) -> EngineEstimate:
        """What is known now. An endpoint nobody dispatched to yet is taken for a typical one."""
        load = self._loads.get(endpoint_id)
        if load is None:
            load = self._load(endpoint_id)
        return load.estimate(self._clock())

    def profiles(self) -> Mapping[str, Profile]:
        """Endpoint id -> what was learnt of it."""
        return {name: load.laws.profile() for name, load in self._loads.items()}

    def load(self, profiles: Mapping[str, Profile]) -> None:
        """Priors for endpoints that come later, as `profiles` gave them once."""
        self._known.update(profiles)

    def forget(self, endpoint_id: str) -> None:
        """The endpoint, or the process behind it, is gone."""
        self._loads.pop(endpoint_id, None)
        self._unseen.discard(endpoint_id)

    # What it is told

    def on_decision(self, request: InferenceRequest, prompt: TokenizedPrompt, decision: Decision) -> None: ...

    def on_dispatch(self, event: Dispatched) -> None:
        candidate, prompt = event.candidate, event.prompt
        if candidate is None or prompt is None:
            return
        self._drop(event.request_id)
        if len(self._flights) >= _MOST_FLIGHTS:
            return
        now = self._clock()
        load = self._loads.get(event.endpoint_id)
        if load is None:
            load = self._load(event.endpoint_id)
        flight = _flight(event, candidate, prompt, load, self._reuse, now)
        self._flights[event.request_id] = flight
        load.dispatched(flight, now)

    def on_leg_failed(self, event: LegFailed) -> None:
        self._drop(event.request_id)

    def on_first_token(self, event: FirstToken) -> None:
        flight = self._flights.get(event.request_id)
        if flight is None or flight.endpoint_id != event.endpoint_id:
            return
        now = self._clock()
        flight.load.first_token(flight, now)
        if self._unseen:
            self._compare(event.endpoint_id)
        if event.leg is Leg.PREFILL:
            del self._flights[event.request_id]
            flight.load.gone(flight, now)

    def on_end(self, event: Ended) -> None:
        flight = self._flights.pop(event.request.request_id, None)
        if flight is None:
            return
        now = self._clock()
        if event.outcome is Outcome.OK:
            flight.load.answered(flight, event.output_tokens, now)
        flight.load.gone(flight, now)

    def _compare(self, heard: str) -> None:
        """Endpoints that nothing was heard of are taken for typical ones, again and again while others teach what that
        is: against engines known to be fast, one taken for slow would never be tried."""
        self._unseen.discard(heard)
        self._events += 1
        if self._unseen and self._events % _COMPARE == 0:
            profile = self._typical()
            for name in self._unseen:
                if profile is not None and name not in self._known:
                    self._loads[name].relearn(profile)

    def _typical(self) -> Profile | None:
        trusted = [load.laws for load in self._loads.values()]
        trusted = [laws for laws in trusted if laws.prefill_confidence > _TRUSTED]
        return typical([laws.profile() for laws in trusted]) if trusted else None

    def _drop(self, request_id: str) -> None:
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            flight.load.gone(flight, self._clock())

    def _load(self, endpoint_id: str) -> Load:
        profile = self._known.get(endpoint_id) or self._typical() or self._prior
        self._unseen.add(endpoint_id)
        load = self._loads[endpoint_id] = Load(Laws(profile), self._reuse)
        return load


def _flight(
    event: Dispatched, candidate: Candidate, prompt: TokenizedPrompt, load: Load, reuse: Reuse, now: float
) -> Flight:
    state, size = candidate.state, prompt.block_size
    load.sized(size, (state.num_blocks or 0) * (state.block_size or 0))
    cached = min(candidate.match.blocks * size, max(prompt.token_count - 1, 0))
    recency = load.recency
    sampled: Sequence[int] = () if recency is None else recency.sample(prompt.block_hashes)
    return Flight(
        load=load,
        endpoint_id=event.endpoint_id,
        at=now,
        prompt_tokens=prompt.token_count,
        cached_tokens=cached,
        sampled=sampled,
        followed=reuse.follow(sampled),
        output_tokens=1
        if event.leg is Leg.PREFILL
        else int(min(load.laws.output_tokens, event.output_tokens or load.laws.output_tokens)),
        prefills=event.prefills,
        streams=event.streams or event.leg is Leg.PREFILL,
    )
