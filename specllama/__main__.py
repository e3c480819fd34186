"""`specllama` and `python -m specllama`."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line; every error of ours becomes one message and its exit code."""
    from specllama.python_command import close_early_engine, start_engine_early

    try:
        if sys.argv[1:2] in (["run"], ["chat"]) and not {"-h", "--help"} & set(sys.argv):
            signal.signal(signal.SIGTERM, lambda n, _: sys.exit(128 + n))  # until the command takes over
            start_engine_early()
        from specllama.cli.app import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # before the command could take care of it
        code = 130
    finally:
        close_early_engine()
    sys.exit(code)


if __name__ == "__main__":
    main()
