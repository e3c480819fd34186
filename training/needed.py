"""Whether the packages of the extra `train` are installed."""

from __future__ import annotations

import importlib.util

from scripts import cli

NEEDED = ("torch", "tokenizers", "numpy", "gguf")


def need_packages() -> None:
    """Raises BadInput."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise cli.BadInput(f'{" and ".join(missing)} not installed; in the checkout: pip install ".[train]"')
