"""Legs: the legs over what they share."""

from __future__ import annotations

import random

from router.answering import Answering
from router.holders import ResponseHolders
from router.inflight import InflightTracker
from router.legs.continuing import Continuing
from router.legs.decode import DecodeLeg
from router.legs.dispatch import Dispatch
from router.legs.prefill import PrefillLeg
from router.legs.retries import Retries
from router.legs.settings import LegSettings
from router.legs.stored import StoredResponses
from router.observability.events import Observer
from router.ports import Clock, EndpointPool, PrefixIndex, Upstream
from router.retry_budget import RetryBudget


class Legs:
    """`run` each as it is needed."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        pool: EndpointPool,
        index: PrefixIndex,
        inflight: InflightTracker,
        observer: Observer,
        holders: ResponseHolders,
        clock: Clock,
        rng: random.Random,
        budget: RetryBudget,
        settings: LegSettings,
    ) -> None:
        dispatch = Dispatch(upstream=upstream, pool=pool, index=index, inflight=inflight, observer=observer)
        retries = Retries(budget, settings, clock=clock, rng=rng)
        answering = Answering(observer, holders, clock, explains=settings.response_headers)
        self.prefill = PrefillLeg(dispatch, retries, observer, clock, settings)
        continuing = Continuing(dispatch, retries, answering, clock, settings)
        self.decode = DecodeLeg(dispatch, retries, answering, continuing, clock, settings)
        self.stored = StoredResponses(dispatch, settings)
