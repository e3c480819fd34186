"""Fields of other APIs: which have no effect, and which would change the text. Knows no models.

Fields that are not listed here are ignored and reported, see fields.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NO_EFFECT = frozenset(
    {
        "cache_prompt", "id_slot", "user", "metadata", "store", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "prediction", "n_keep",
        "slot_id", "timings_per_token", "return_progress", "return_tokens", "priority", "request_id",
        "spaces_between_special_tokens", "n_cache_reuse", "response_fields", "n_discard", "sse_ping_interval",
        "backend_sampling", "disable_parallel_tool_use", "preserved_tokens", "verbose", "reasoning_control",
        "client_metadata", "max_tool_calls", "background_options", "access_programs", "betas",
        "cache_control", "inference_geo", "speed", "diagnostics",
        # Without effect unless another field of theirs, which is in _OFF, switches them on:
        "mirostat_tau", "mirostat_eta", "xtc_threshold", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "adaptive_decay",
        "grammar_triggers",
    }
)  # fmt: skip
"""Fields that have no effect here and are not named, since clients send them with every request."""
_OFF: Mapping[str, tuple[Any, ...]] = {
    "messages": ([],),  # conversations and prompts of other APIs
    "prompt": ("", []),
    "input": ("", []),
    "instructions": ("",),
    "system": ("", []),
    "images": ([],),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "suffix": ("",),
    "echo": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "min_keep": (0,),
    "include_stop_str_in_output": (False,),
    "add_special_tokens": (True,),
    "truncate_prompt_tokens": (-1,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "documents": ([],),
    "chat_template": ("",),
    "template": ("",),
    "web_search_options": (),
    "post_sampling_probs": (False,),
    "mirostat": (0,),
    "typical_p": (1,),
    "typ_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "grammar_lazy": (False,),
    "parse_tool_calls": (True,),
    "reasoning_format": ("auto", "none", "deepseek", "deepseek-legacy"),  # texts are not split
    "add_generation_prompt": (True,),
    "continue_final_message": (True,),
    "lora": ([],),
}
"""Fields that are not supported, with the values that would change nothing."""
_OFF_UP_TO: Mapping[str, float] = {"top_n_sigma": 0, "adaptive_target": -1e-6}
"""The same for numbers that are off up to this one."""


def is_harmless(name: str, value: Any) -> bool | None:
    """True if a field that the body does not have changes nothing and need not be reported, False if it
    is to be reported, None if it would change the text.
    """
    if value is None or name in _NO_EFFECT:
        return True
    if name in _OFF_UP_TO:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return True if number and value <= _OFF_UP_TO[name] else None
    if name not in _OFF:
        return False
    same = (value == off and isinstance(value, bool) == isinstance(off, bool) for off in _OFF[name])
    return True if any(same) else None
