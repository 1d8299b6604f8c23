"""``python -m loadtest.run``: headless locust against the demo, which is started first when nothing listens yet."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from loadtest.arguments import PORT, Parser, complain
from loadtest.cluster import answers, start_child, wait_for
from loadtest.demo.children import ChildFailed
from loadtest.locust_run import LOCUSTFILE
from loadtest.profile import ProfileError, load_profile


def main(arguments: Sequence[str] | None = None) -> int:
    """locust's exit code. Further arguments are locust's own."""
    parser = Parser(prog="python -m loadtest.run", description=__doc__)
    parser.add_argument("--port", type=PORT, default=8000, help="the router's port on 127.0.0.1 (default: 8000)")
    parser.add_argument("--profile", default="demo", metavar="NAME|FILE", help="load profile (default: demo)")
    options, others = parser.parse_known_args(arguments)
    try:
        load_profile(options.profile)
    except ProfileError as error:
        parser.error(str(error))
    url = f"http://127.0.0.1:{options.port}"
    with ExitStack() as stack:
        if not answers(f"{url}/ready"):
            sys.stderr.write(f"nothing is ready on {url}: starting the demo there\n")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvrouter-")))
            demo = start_child(stack, "demo", ["router", "demo", "--port", str(options.port)], folder)
            try:
                wait_for(demo, [f"{url}/ready"])
            except ChildFailed as error:
                return complain(error)
        locust = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", url, "--headless", "--only-summary"]
        return subprocess.run(
            [*locust, "--load-profile", options.profile, *others], stdin=subprocess.DEVNULL, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
