"""Tensors that settings keep in a buffer of their own, whatever layer they are in."""

from __future__ import annotations

import re

from specllama.config.load import ModelSettings

_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_HOST = "CPU"


def tensor_overrides(s: ModelSettings) -> list[tuple[str, str]]:
    """(regular expression of names, buffer type), as llama.cpp reads them: the first that matches counts."""
    if s.n_cpu_moe == -1:
        experts = [(_EXPERTS, _HOST)]
    else:
        experts = [(rf"blk\.{layer}" + _EXPERTS, _HOST) for layer in range(s.n_cpu_moe)]
    return [*s.override_tensor, *experts]


def stays_on_host(name: str, overrides: tuple[tuple[str, str], ...]) -> bool:
    """Whether a tensor stays in host memory though its layer is on a device. A pattern that is no regular
    expression matches nothing; loading refuses it.
    """
    for pattern, buffer in overrides:
        try:
            match = re.search(pattern, name)
        except re.error:
            continue
        if match:
            return buffer == _HOST
    return False
