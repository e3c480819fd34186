"""Installs specllama into .venv of this checkout; called by setup.sh where something is missing.

Needs the standard library alone. The parts are in scripts/installation.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # not there with PYTHONSAFEPATH
from installation.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
