"""Random ids of answers and calls."""

from __future__ import annotations

import secrets
import string

_ALPHANUMERICS = string.ascii_letters + string.digits


def random_key() -> str:
    """24 random letters and digits."""
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(24))
