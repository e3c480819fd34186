"""The tags that models put around their reasoning: opening to closing. Knows nothing else."""

from __future__ import annotations

from collections.abc import Mapping

TAGS: Mapping[str, str] = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
