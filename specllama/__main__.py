"""`specllama` and `python -m specllama`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; every error of ours becomes one message and its exit code."""
    from specllama.cli.app import run_app

    sys.exit(run_app(sys.argv[1:]))


if __name__ == "__main__":
    main()
