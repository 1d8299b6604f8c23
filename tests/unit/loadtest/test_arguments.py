"""Every command of this package answers bad input with one line and exit code 2, before it starts anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtest import compare, many_routers, run
from loadtest.bench import kvindex_bench, sharing_bench


@pytest.mark.parametrize(
    ("main", "arguments", "named"),
    [
        (run.main, ["--port", "70000"], "--port"),
        (run.main, ["--port", "http"], "--port"),
        (run.main, ["--profile", "nothing"], "nothing"),
        (compare.main, ["--engines", "0"], "--engines"),
        (compare.main, ["--load-profile", "nothing"], "nothing"),
        (compare.main, ["--policy", "nothing"], "--policy"),
        (compare.main, ["--demand-ratio", "nan"], "--demand-ratio"),
        (compare.main, ["--json", "no/such/folder/file"], "--json"),
        (many_routers.main, ["--routers", "0"], "--routers"),
        (many_routers.main, ["--users", "-1"], "--users"),
        (many_routers.main, ["--demand-hits", "0"], "--demand-hits"),
        (kvindex_bench.main, ["--blocks", "0"], "--blocks"),
        (sharing_bench.main, ["--nothing"], "--nothing"),
        (sharing_bench.main, ["--redis", "http://nowhere"], "redis"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    main: Callable[[list[str]], Any], arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as left:
        code = left.code
    assert code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert named in line


def test_a_load_profile_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_bytes(b"\xff\xfe")
    assert compare.main(["--load-profile", str(profile)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "profile.yaml" in line
