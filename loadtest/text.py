"""Text out of a seed: the same seed gives the same words on every machine and every run. PURE."""

from __future__ import annotations

import random

_TEXT = (
    "the a one every some another first last new old large small quick slow quiet bright early late open closed "
    "engine router cache block prompt answer token request server client queue worker model batch prefix turn "
    "river mountain garden market window bridge letter story paper season morning evening winter summer weather "
    "teacher farmer doctor driver painter sailor writer neighbour family friend village city country island harbour "
    "takes gives holds finds keeps makes turns moves reads writes sends brings shows knows wants needs leaves meets "
    "and or but because while before after under over between behind without along toward near far often never "
    "always today yesterday tomorrow again together slowly quickly mostly hardly clearly number question reason "
    "place time work house light water stone wood glass metal road field forest corner middle end begin side part"
)
WORDS = tuple(_TEXT.split())

TOKENS_PER_WORD = 1.4
"""About what the simulator's tokenizer makes of these words; lengths in words need no better."""


def words(seed: str, count: int) -> str:
    """`count` words that depend on `seed` alone."""
    chosen = random.Random(seed).choices(WORDS, k=count)
    return " ".join(chosen)
