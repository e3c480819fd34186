"""Installs specllama into .venv of this checkout; called by setup.sh where something is missing.

Needs the standard library alone. The parts are in installer; specllama/clock.py is used too.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # not there with PYTHONSAFEPATH
from installer.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
