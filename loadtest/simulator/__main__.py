"""``python -m loadtest.simulator``."""

from loadtest.simulator.cli import app

app()
