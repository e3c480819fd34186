"""llama.cpp's `samplers` field: which steps of sampling are used.

The order of ours is fixed and llama.cpp's own. Steps that are not supported are named by clients all the
same; the fields that would switch them on are refused where they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.core.sampling.params import PARAMETERS
from specllama.server.dialects.fields import FieldError

STEPS: Mapping[str, str] = {
    "penalties": "e", "top_k": "k", "top_p": "p", "min_p": "m", "temperature": "t"
}  # fmt: skip
"""Our steps in order, with the letters that they have in Parameter.step and in a text of letters."""
_UNUSED = {
    "dry": "d", "top_n_sigma": "s", "typ_p": "y", "xtc": "x", "adaptive_p": "a", "infill": "i", "tfs_z": "f",
    "mirostat": "", "top_a": "",
}  # fmt: skip
_ALIASES = {
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical_p": "typ_p",
    "typical": "typ_p",
}
_NAMES = {name.replace("_", ""): name for name in (*STEPS, *_UNUSED)} | {
    name.replace("_", ""): meant for name, meant in _ALIASES.items()
}
_BY_LETTER = {letter: name for name, letter in {**STEPS, **_UNUSED}.items() if letter}


def switched_off(samplers: str | Sequence[str]) -> dict[str, Any]:
    """The parameters that switch off our steps that are not among the samplers. samplers: names, or a text of
    letters. Raises FieldError for unknown names, and for our steps twice or in another order.
    """
    if isinstance(samplers, str):
        found = [_BY_LETTER.get(letter, letter) for letter in samplers]
    else:
        found = [_NAMES.get(name.replace("-", "_").replace("_", "").lower(), name) for name in samplers]
    for name in found:
        if name not in STEPS and name not in _UNUSED:
            known = ", ".join((*STEPS, *_UNUSED))
            raise FieldError(f"samplers: there is no {name[:40]!r}, only {known}", "samplers")
    used = [name for name in found if name in STEPS]
    if used != [name for name in STEPS if name in used]:
        raise FieldError(f"samplers: only once each, in the order {', '.join(STEPS)}", "samplers")
    letters = {STEPS[name] for name in used}
    return {name: p.off for name, p in PARAMETERS.items() if p.step and p.step not in letters}
