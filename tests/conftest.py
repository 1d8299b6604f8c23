"""What holds for every test: no law is judged by the time a busy machine took for one example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
