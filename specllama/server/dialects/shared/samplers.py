"""llama.cpp's `samplers` field: selects the sampling steps.

The order of steps is fixed: llama.cpp's default. Clients also name steps that are not supported; the fields
that would switch those on are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specllama.core.sampling.params import STEP_NAMES, with_steps
from specllama.json_types import JsonObject
from specllama.server.dialects.shared.fields import FieldError

_STEPS: Mapping[str, str] = {name: letter for letter, name in STEP_NAMES.items()}
_UNUSED = {
    "dry": "d", "top_n_sigma": "s", "typ_p": "y", "xtc": "x", "adaptive_p": "a", "tfs_z": "f",
    "mirostat": "", "top_a": "",
}  # fmt: skip
_ALIASES = {
    "nucleus": "top_p",
    "temp": "temperature",
    "typ": "typ_p",
    "typical_p": "typ_p",
    "typical": "typ_p",
}
_NAMES = {name.replace("_", ""): name for name in (*_STEPS, *_UNUSED)} | {
    name.replace("_", ""): meant for name, meant in _ALIASES.items()
}
_BY_LETTER = {letter: name for name, letter in {**_STEPS, **_UNUSED}.items() if letter}


def with_samplers(samplers: str | Sequence[str]) -> JsonObject:
    """Parameters that switch off the steps missing from `samplers`, and `infill` on if it is included.
    samplers: names, or letters in one string. Raises FieldError for unknown names, repeated or reordered
    steps, and `infill` without `top_k`.
    """
    if isinstance(samplers, str):
        names = [_BY_LETTER.get(letter, letter) for letter in samplers]
    else:
        names = [_NAMES.get(name.replace("-", "_").replace("_", "").lower(), name) for name in samplers]
    for name in names:
        if name not in _STEPS and name not in _UNUSED:
            known = ", ".join((*_STEPS, *_UNUSED))
            raise FieldError(f"samplers: there is no {name[:40]!r}, only {known}", "samplers")
    used = [name for name in names if name in _STEPS]
    if used != [name for name in _STEPS if name in used]:
        raise FieldError(f"samplers: only once each, in the order {', '.join(_STEPS)}", "samplers")
    if "infill" in used and "top_k" not in used:
        raise FieldError("samplers: infill needs top_k before it", "samplers")
    return with_steps("".join(_STEPS[name] for name in used))
