"""What the engine says to the command's users, in the words of this API: flags become arguments."""

from __future__ import annotations

import re

from specllama.config.options import as_argument
from specllama.errors import SpecllamaError

_ARGUMENTS = {
    "-c": "max_model_len",
    "-cd": "n_ctx_draft",
    "-ctk": "cache_type_k",
    "-ctkd": "cache_type_k_draft",
    "-ctv": "cache_type_v",
    "-ctvd": "cache_type_v_draft",
    "-fa": "flash_attn",
    "-md": "speculative_model",
    "-ngl": "n_gpu_layers",
    "-ngld": "n_gpu_layers_draft",
    "--chat-template": "chat_template",
    "--draft-max": "num_speculative_tokens",
    "--draft-min": "draft_min",
    "--draft-p-min": "draft_p_min",
    "--drafters": "drafters",
    "--override-tensor": "override_tensor",
    "--raw": "generate",
    "draft_max": "num_speculative_tokens",
}
_VALUE = r"\d+|none|on|off|auto|all|[a-z]+\d\w*"
_FLAG = re.compile(rf"(?<![\w-])({'|'.join(_ARGUMENTS)})(?: ({_VALUE}))?(?![\w-])")
_WHERE_FROM = " with -p, -f or on standard input"


def in_python(text: str) -> str:
    """The text with arguments for flags: `-c 512` is max_model_len=512."""
    return _FLAG.sub(_argument, text.replace(_WHERE_FROM, ""))


def translated(error: SpecllamaError, where: str = "") -> SpecllamaError:
    """The error with arguments for flags, and before it what it is about."""
    told = error.spelled(as_argument)
    return type(error)(where + in_python(told.message), in_python(told.hint))


def _argument(found: re.Match[str]) -> str:
    name, value = _ARGUMENTS[found[1]], found[2]
    if value is None:
        return name
    return f"{name}={value if value.isdigit() else None if value == 'none' else repr(value)}"
