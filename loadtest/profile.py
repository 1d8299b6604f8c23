"""LoadProfile: one kind of load, written down so that two runs of it ask the same things. PURE but for `load_profile`.

Lengths of text are counted in words, those of answers in tokens. A range is ``[least, most]``, drawn evenly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import yaml

PROFILES = Path(__file__).parent / "profiles"
"""The folder of the profiles that come with the package."""

Shape = Literal["shared-prefix", "multi-turn", "trace"]


class ProfileError(ValueError):
    """A profile that cannot be used; the message names the key and the mend."""


class Range(NamedTuple):
    """Whole numbers from `least` to `most`, both included."""

    least: int
    most: int


class Seconds(NamedTuple):
    """A time drawn between the two, in seconds."""

    least: float
    most: float


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single questions, each behind the system prompt of its group."""

    groups: int = 8
    system_words: int = 600
    question_words: Range = Range(20, 60)
    answer_tokens: Range = Range(32, 96)
    think_s: Seconds = Seconds(0.0, 0.5)


class MultiTurn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations that grow by what the assistant really answered."""

    conversations: int | None = None
    """How many a user holds before it leaves; None: until the run ends."""
    turns: Range = Range(4, 8)
    groups: int = 4
    """Conversations of one group share their system prompt."""
    system_words: int = 300
    question_words: Range = Range(30, 80)
    answer_tokens: Range = Range(32, 96)
    think_s: Seconds = Seconds(0.2, 1.0)


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded or generated trace, asked at its own times."""

    path: str | None = None
    """JSONL, or JSONL in gzip; None: a small one is generated from the seed."""
    block_tokens: int = 512
    """Tokens that one of the trace's blocks stands for."""
    scale: float = 1.0
    """Factor on all lengths: 0.125 makes blocks of 64 tokens out of blocks of 512."""
    speedup: float = 1.0
    limit: int | None = None
    """Only the first so many requests."""


class LoadProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of load. `users` and `spawn_rate` (users a second) are locust's."""

    shape: Shape
    users: int
    spawn_rate: float
    run_time_s: float
    """At most this long; a load of fixed size ends by itself."""
    seed: int = 0
    ignore_eos: bool = True
    """Asks the engine to go on to the wanted length (vLLM's extension), so that two runs compute the same."""
    shared_prefix: SharedPrefix = SharedPrefix()
    multi_turn: MultiTurn = MultiTurn()
    trace: Trace = Trace()
    simulator: dict[str, str | int | float] = {}
    """Flags of `kvrouter sim` under which this load says something, for `loadtest.compare`."""


def load_profile(name: str) -> LoadProfile:
    """The profile of that name in this package, or the one in the YAML file of that path. Raises ProfileError."""
    path = PROFILES / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        known = ", ".join(sorted(file.stem for file in PROFILES.glob("*.yaml")))
        raise ProfileError(f"no load profile {name!r}: give the path of a YAML file, or one of {known}") from None
    return parse_profile(text, str(path))


def parse_profile(text: str, source: str) -> LoadProfile:
    """The profile in a YAML text; `source` names it in errors. Raises ProfileError."""
    try:
        profile = msgspec.convert(yaml.safe_load(text), LoadProfile)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ProfileError(f"{source}: {' '.join(str(error).split())}") from None
    ranges = {
        f"{part}.{key}": value
        for part, struct in (("shared_prefix", profile.shared_prefix), ("multi_turn", profile.multi_turn))
        for key, value in msgspec.structs.asdict(struct).items()
        if isinstance(value, (Range, Seconds))
    }
    for key, (least, most) in ranges.items():
        if not 0 <= least <= most:
            raise ProfileError(f"{source}: {key} must be [least, most] with 0 <= least <= most, not [{least}, {most}]")
    for key in ("users", "spawn_rate", "run_time_s"):
        if getattr(profile, key) <= 0:
            raise ProfileError(f"{source}: {key} must be more than 0, not {getattr(profile, key)}")
    return profile
