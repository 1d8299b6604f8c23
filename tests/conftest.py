"""What holds for every test: no law is judged by the time a busy machine took for one example. And what many need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A change is judged by the same examples each time; others, and many more, are for whoever looks for a false law.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("steady")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, which `tmp_path` does not always."""
    with tempfile.TemporaryDirectory(prefix="kv", dir="/tmp") as folder:
        yield Path(folder)
