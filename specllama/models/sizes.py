"""Numbers of bytes: for people to read, and guessed from the name of a model."""

from __future__ import annotations

import re

_BILLIONS = re.compile(r"(?i)(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])")
_BITS = re.compile(r"(?i)^(?:UD-)?(?:I?Q|TQ|MXFP|NVFP|BF|FP?)(\d+)")
FILE_SHARE = 0.9  # of the memory that is there, which a file may have; the context needs some too
_BESIDE = 0.75  # bits a weight of scales, and of the tensors that a quantisation leaves larger


def guessed_bytes(name: str, quant: str) -> int | None:
    """About the bytes of a model, by the parameters in its name and the bits in that of its quantisation:
    4.9 GB for llama-3.1-8b in Q4_K_M. None where one of them is not there.
    """
    n_params, bits = _BILLIONS.search(name), _BITS.search(quant)
    if n_params is None or bits is None:
        return None
    scale = 1e9 if n_params[2] in "bB" else 1e6
    return round(float(n_params[1]) * scale * (int(bits[1]) + _BESIDE) / 8)


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
