"""What the client is told when every attempt failed, and three ways to fail that only the decode leg knows."""

from __future__ import annotations

from router.answering import Attempt
from router.errors import NoEndpoint, RouterError, UpstreamFailed, UpstreamTimeout
from router.ports import (
    UpstreamAbandoned,
    UpstreamBroken,
    UpstreamError,
    UpstreamOrphaned,
    UpstreamRefused,
    UpstreamSilent,
)
from router.wire.transcript import Transcript


class Interrupted(UpstreamBroken):
    """The answer broke off after its beginning had gone to the client, and another engine may go on with it."""

    def __init__(self, attempt: Attempt, transcript: Transcript) -> None:
        super().__init__("the answer broke off")
        self.attempt = attempt
        self.transcript = transcript


class Busy(UpstreamBroken):
    """The engine said that it did not take the request on."""


class HandOffFailed(UpstreamBroken):
    """The engine failed, perhaps in reading the KV: vLLM says 500 when it cannot (``kv_load_failure_policy: fail``)."""


def no_answer(failure: UpstreamError | None, attempts: int) -> RouterError:
    """`failure`: the last of `attempts`; None: there was nobody to ask."""
    if isinstance(failure, UpstreamSilent):
        return UpstreamTimeout(
            "The engine did not begin to answer within upstream.first_byte_timeout_s, or paused for longer than "
            "upstream.idle_timeout_s."
        )
    if isinstance(failure, UpstreamRefused):
        return NoEndpoint("No endpoint that serves this request could be reached.", retry_after_s=1)
    if failure is None or isinstance(failure, UpstreamAbandoned | UpstreamOrphaned):
        return NoEndpoint("No endpoint that serves this request answers any more.", retry_after_s=1)
    if attempts == 1:
        return UpstreamFailed(f"The endpoint that was asked gave no usable answer: {failure}.")
    return UpstreamFailed(f"None of {attempts} attempts brought a usable answer; the last one: {failure}.")
