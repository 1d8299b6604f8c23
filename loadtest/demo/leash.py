"""``python -m loadtest.demo.leash MODULE ARGS...``: runs a module here, and ends it when standard input closes.

The parent holds the other end of that pipe, so its end, even by SIGKILL, ends this process on every platform.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading

_GRACE_S = 10.0


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_S)
    os._exit(1)


def main() -> None:
    threading.Thread(target=_watch, name="leash", daemon=True).start()
    module, *arguments = sys.argv[1:]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
