"""Load profiles: what comes with the package loads, and a mistake is named with its key."""

from __future__ import annotations

import pytest

from loadtest.profile import PROFILES, ProfileError, load_profile, parse_profile

SMALL = "{shape: multi-turn, users: 2, spawn_rate: 1, run_time_s: 5%s}"


@pytest.mark.parametrize("name", sorted(path.stem for path in PROFILES.glob("*.yaml")))
def test_every_profile_of_the_package_loads(name: str) -> None:
    assert load_profile(name).users > 0


def test_a_profile_of_ones_own_is_named_by_its_path(tmp_path: pytest.TempPathFactory) -> None:
    path = str(tmp_path) + "/mine.yaml"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(SMALL % ", seed: 9")
    assert load_profile(path).seed == 9


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ProfileError, match=r"no load profile 'busy'.*multiturn"):
        load_profile("busy")


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (", turns: 5", "turns"),
        (", multi_turn: {turns: 5}", "multi_turn.turns"),
        (", multi_turn: {turns: [5, 2]}", r"multi_turn.turns must be \[least, most\]"),
        (", multi_turn: {think_s: [-1, 2]}", "multi_turn.think_s"),
        (", users: 0", "users must be more than 0"),
        (", shape: [", "mine"),
    ],
)
def test_a_mistake_is_named(extra: str, named: str) -> None:
    with pytest.raises(ProfileError, match=named):
        parse_profile(SMALL % extra, "mine")
