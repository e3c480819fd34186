"""`python -m specllama.cli.launch.own_server serve ...`: the program, which ends with the process that
started it.

Its stdin is a pipe to which only that process holds the other end: the system closes it when the process
ends, also when it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from specllama.cli.app import run_app


def end_with_stdin() -> None:
    """Have SIGTERM sent to this process when its stdin is closed."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    # To the main thread: it may be in a system call, which the signal then interrupts.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


if __name__ == "__main__":
    end_with_stdin()
    sys.exit(run_app(sys.argv[1:]))
