"""How much an endpoint that has just come (back) into service may be given. PURE.

It has a cold cache, and perhaps kernels still to compile, but it is empty, so every policy that looks at load would
send it everything at once. Its requests in flight are therefore bounded by a share of what its peers have, which grows
over `slow_start_s`: one at any time, so that it is never starved, and never more than its share, so that it is not
flooded. Where nobody has been in service for longer, nobody is bounded.

An endpoint on trial (`EndpointState.on_trial`) is given one request at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.core import EndpointState, Role

_LEAST = 0.1
"""Share at the begin of the ramp."""


def open_to_more(
    states: Sequence[EndpointState], requests: Callable[[str], int], now: float, slow_start_s: float
) -> Sequence[EndpointState]:
    """Those of `states` that may get one more request; all of them where otherwise nobody could decode.

    `requests(endpoint_id)`: this router's in flight. `now` in monotonic seconds, `slow_start_s` 0 for no ramp.
    """
    since = now - slow_start_s
    for state in states:
        if state.on_trial or (state.since is not None and state.since > since):
            break
    else:
        return states
    settled = [state for state in states if not state.on_trial and (state.since is None or state.since <= since)]
    free = [state for state in states if _free(state, settled, requests, now, slow_start_s)]
    return free if any(state.endpoint.role is not Role.PREFILL for state in free) else states


def _free(
    state: EndpointState,
    settled: Sequence[EndpointState],
    requests: Callable[[str], int],
    now: float,
    slow_start_s: float,
) -> bool:
    own = requests(state.endpoint.id)
    if state.on_trial:
        return not own
    if not own or state.since is None or now - state.since >= slow_start_s:
        return True
    role = state.endpoint.role
    peers = [
        requests(other.endpoint.id)
        for other in settled
        if other.endpoint.role is role or Role.BOTH in (role, other.endpoint.role)
    ]
    if not peers:
        return True
    share = max((now - state.since) / slow_start_s, _LEAST)
    return own < 1 + share * sum(peers) / len(peers)
