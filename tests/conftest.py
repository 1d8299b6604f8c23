"""What holds for every test: no law is judged by the time a busy machine took for one example. And what many need."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name, which `tmp_path` does not always."""
    with tempfile.TemporaryDirectory(prefix="kv", dir="/tmp") as folder:
        yield Path(folder)
