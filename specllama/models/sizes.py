"""Numbers of bytes for people to read."""

from __future__ import annotations


def size(n_bytes: int | None) -> str:
    """The number with a unit, "?" if it is None: "1.5 GB"."""
    if n_bytes is None:
        return "?"
    value, unit = float(n_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{n_bytes} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
