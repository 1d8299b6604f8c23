"""``python -m router.workers.leash COMMAND ARGS...``: runs a command for as long as standard input stays open.

Its parent holds the other end, so that the parent's end, even by SIGKILL, ends the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading

_GRACE_S = 3.0


def main() -> int:
    process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    threading.Thread(target=_watch, args=(process,), name="leash", daemon=True).start()
    return process.wait()


def _watch(process: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


if __name__ == "__main__":
    sys.exit(main())
