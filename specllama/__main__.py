"""`specllama` and `python -m specllama`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; every error of ours becomes one message and its exit code."""
    try:
        from specllama.cli.app import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # before the command could take care of it
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
