"""``python -m loadtest.simulator``."""

import sys

from loadtest.simulator.cli import main

sys.exit(main(sys.argv[1:]))
