"""Job: one leg of a request on a simulated engine, and how far it has come. PURE."""

from __future__ import annotations

from collections.abc import Sequence


class Job:
    """One leg of a request on an engine. `tag` is the caller's."""

    __slots__ = (
        "blocks",
        "cached",
        "chain",
        "computed",
        "ends",
        "filled",
        "generated",
        "goal",
        "hold",
        "order",
        "output",
        "output_blocks",
        "prompt",
        "ready",
        "remote",
        "tag",
    )

    def __init__(
        self,
        tag: object,
        chain: Sequence[int],
        prompt: int,
        output: int,
        *,
        output_blocks: Sequence[int] = (),
        hold: bool = False,
        remote: bool = False,
    ) -> None:
        """`chain`: ids of the prompt's full blocks; `output_blocks`: of those that a cached answer fills."""
        self.tag = tag
        self.chain = chain
        self.prompt = prompt
        self.output = output
        self.output_blocks = output_blocks
        self.hold = hold
        self.remote = remote
        self.ready = False
        self.blocks: list[int] = []
        self.filled = 0
        self.computed = 0
        self.cached = 0
        self.generated = 0
        self.goal = prompt
        """Tokens to compute before the next one is sampled by a prefill."""
        self.order = 0
        self.ends = -1
        """The decode step that gives the last token; -1 while not decoding."""

    def copy(self) -> Job:
        twin = Job.__new__(Job)
        for name in Job.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.blocks = self.blocks.copy()
        return twin

    @property
    def known(self) -> Sequence[int]:
        """Ids of the full blocks of prompt and answer."""
        return [*self.chain, *self.output_blocks] if self.output_blocks else self.chain
