"""The sampling parameters in a model's file (general.sampling.*), read as llama.cpp reads them.

llama.cpp checks none of them: numbers are read as far as they go, and its samplers take what is out of range
as switched off, or as the nearest value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from specllama.core.sampling.params import PARAMETERS, STEP_NAMES, STEPS, with_steps
from specllama.errors import Note

Metadata = Callable[[str], str | None]
_PREFIX = "general.sampling."
_KEYS: Mapping[str, str] = {name: p.file_key for name, p in PARAMETERS.items() if p.file_key}
_INTEGER = re.compile(r"\s*[+-]?[0-9]+")
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|inf|nan)")
# The names of samplers in general.sampling.sequence, without "_" and "-", as letters of --sampling-seq.
_LETTERS: Mapping[str, str] = {
    **{name.replace("_", ""): letter for letter, name in STEP_NAMES.items()}, "nucleus": "p", "temp": "t"
}  # fmt: skip
_NO_EFFECT = ("dry", "topnsigma", "typp", "typ", "xtc")  # at llama.cpp's defaults


def sampling_defaults(metadata: Metadata) -> Mapping[str, object]:
    """The parameters that a file sets. metadata: from a key to its value as text, None if it is not there."""
    defaults = {name: value for name in _KEYS if (value := _value(metadata, name)) is not None}
    letters, _ = _steps(metadata)
    steps = with_steps(letters) if letters else {}
    return defaults | {
        name: v for name, v in steps.items() if name in defaults or v != PARAMETERS[name].default
    }


def sampling_notes(metadata: Metadata) -> list[Note]:
    """The file's sampling settings that are not applied."""
    left_out = []
    for name, key in _KEYS.items():
        text = metadata(_PREFIX + key)
        if text is not None and _value(metadata, name) is None:
            left_out.append(f"{key} = {text[:40]}")
    for key in ("mirostat", "xtc_probability"):
        text = metadata(_PREFIX + key)
        match = _NUMBER.match(text or "")
        if match and float(match[0]) > 0:
            left_out.append(f"{key} = {str(text)[:40]}")
    _, problem = _steps(metadata)
    if problem:
        left_out.append(problem)
    if not left_out:
        return []
    return [Note(f"of the sampling settings in the model's file these are left out: {'; '.join(left_out)}")]


def _value(metadata: Metadata, name: str) -> float | None:
    """The value of a parameter, None if there is none that can be used."""
    text, parameter = metadata(_PREFIX + _KEYS[name]), PARAMETERS[name]
    match = (_INTEGER if parameter.kind is int else _NUMBER).match(text or "")
    if not match:
        return None
    if parameter.kind is int:
        return max(0, min(int(match[0]), int(parameter.highest)))
    value = float(match[0])
    if math.isnan(value) or (name == "repeat_penalty" and not 0 < value < math.inf):
        return None
    return max(float(parameter.low or 0), min(value, float(parameter.highest)))


def _steps(metadata: Metadata) -> tuple[str, str]:
    """(The steps of general.sampling.sequence as letters, "" for the usual ones; what of it is left out)."""
    text = metadata(_PREFIX + "sequence")
    if not text:
        return "", ""
    names = [name.strip().lower() for name in text.split(";")]
    plain = [re.sub("[_-]", "", name) for name in names]
    letters = "".join(_LETTERS.get(name, "") for name in plain)
    unknown = [n for n, p in zip(names, plain, strict=True) if p not in _LETTERS and p not in _NO_EFFECT]
    ordered = "".join(c for c in STEPS if c in letters)
    if unknown:
        return ordered, f"{', '.join(unknown)[:80]} in the sequence of samplers"
    return ordered, "the order of the samplers" if ordered != letters else ""
