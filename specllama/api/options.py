"""From the arguments of LLM and AsyncLLM to load settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from specllama.api.checks import (
    Layers,
    ModelName,
    as_tuple,
    layers,
    model_name,
    of_kind,
    positive_int,
    texts,
)
from specllama.api.finding import ModelRequest, with_paths
from specllama.config.load import MAX_DRAFT, LoadSettings, ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import UsageError
from specllama.models.prepare import Paths

MAX_SLOTS = 256  # LLAMA_MAX_SEQ


class LoadOptions(TypedDict, total=False):
    """How models are loaded, beyond the named arguments: the names of the flags. What ends in `_draft` is the
    draft's; its threads and batches are else the target's. See ModelSettings and LoadSettings.
    """

    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    devices: Sequence[str]
    split_mode: str
    tensor_split: Sequence[float]
    main_gpu: int
    override_tensor: Sequence[tuple[str, str]]
    n_cpu_moe: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    swa_full: bool
    use_mmap: bool
    use_mlock: bool
    lora: Sequence[tuple[str, float]]
    rope_scaling: str
    rope_scale: float
    rope_freq_base: float
    rope_freq_scale: float
    yarn_orig_ctx: int
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_slow: float
    yarn_beta_fast: float
    n_ctx_draft: int
    n_threads_draft: int
    n_threads_batch_draft: int
    n_gpu_layers_draft: Layers
    devices_draft: Sequence[str]
    override_tensor_draft: Sequence[tuple[str, str]]
    n_cpu_moe_draft: int
    cache_type_k_draft: str
    cache_type_v_draft: str
    draft_min: int
    draft_p_min: float
    calibrate: bool
    memory: bool
    rpc: Sequence[str] | str


_OTHER_NAMES = {
    "n_ctx": "max_model_len",
    "n_slots": "max_num_seqs",
    "draft": "speculative_model",
    "draft_model": "speculative_model",
    "draft_max": "num_speculative_tokens",
}
_SHARED = ("n_batch", "n_ubatch", "n_threads", "n_threads_batch", "use_mmap", "use_mlock", "flash_attn")


class SpeculativeConfig(TypedDict, total=False):
    """vLLM's way to say it: a draft and how many tokens."""

    model: ModelName | None
    num_speculative_tokens: int | Literal["auto"]


def load_settings(
    model: ModelName | None,
    speculative_model: ModelName | None,
    num_speculative_tokens: int | Literal["auto"],
    *,
    max_num_seqs: int,
    max_model_len: int | None,
    n_gpu_layers: Layers,
    drafters: Sequence[str],
    chat_template: str | None,
    exact: bool,
    options: Mapping[str, Any],
) -> tuple[LoadSettings, ModelRequest | None]:
    """How to load, and which models: those that have to be downloaded first, None where all are on disk.

    Raises UsageError, NotFoundError, ConfigError.
    """
    positive_int("max_num_seqs", max_num_seqs, MAX_SLOTS)
    if max_model_len is not None:
        positive_int("max_model_len", max_model_len, 2**31 - 1)
    of_kind("exact", exact, "bool")
    if chat_template is not None:
        of_kind("chat_template", chat_template, "str")
    given = _known(options)
    own = {name: value for name, value in given.items() if name in _TARGET}
    target = ModelSettings(
        path="",
        n_ctx=0 if max_model_len is None else max_model_len,
        n_gpu_layers=layers("n_gpu_layers", n_gpu_layers),
        **own,
    )
    names = texts("drafters", drafters)
    drafts = "model" in names and speculative_model not in (None, "none")
    settings = LoadSettings(
        target=target,
        draft=_draft(target, given) if drafts else None,
        n_slots=max_num_seqs,
        drafters=names,
        draft_max=_draft_max(num_speculative_tokens),
        exact=exact,
        chat_template=chat_template,
        **{name: given[name] for name in _LOAD if name in given},
    )
    if model is None and (speculative_model == "auto" or not drafts):
        return with_paths(settings, Paths(str(EMBEDDED_TARGET), str(EMBEDDED_DRAFT))), None
    target_name = str(EMBEDDED_TARGET) if model is None else model_name(model, "model")
    draft_name = "none"
    if drafts and speculative_model is not None:
        draft_name = model_name(speculative_model, "speculative_model")
    wanted = ModelRequest(target_name, draft_name)
    found = wanted.settings(settings)
    return (settings, wanted) if found is None else (found, None)


def speculative(
    config: SpeculativeConfig | None,
    model: ModelName | None,
    tokens: int | Literal["auto"],
) -> tuple[ModelName | None, int | Literal["auto"]]:
    """Draft and tokens, from the two arguments or from vLLM's dict. Raises UsageError."""
    if config is None:
        return model, tokens
    if model != "auto" or tokens != "auto":
        raise UsageError("speculative_config and speculative_model or num_speculative_tokens are both given")
    if not isinstance(config, Mapping):
        raise UsageError(f"speculative_config must be a dict, not {type(config).__name__}")
    known = {"model", "num_speculative_tokens"}
    if unknown := sorted(set(config) - known, key=str):
        raise UsageError(
            f"speculative_config: {unknown[0]!r} is not known",
            f"known: {', '.join(sorted(known))}; who drafts beside a model is said by drafters",
        )
    return config.get("model", "auto"), config.get("num_speculative_tokens", "auto")


def _draft(target: ModelSettings, given: Mapping[str, Any]) -> ModelSettings:
    values = {name: getattr(target, name) for name in _SHARED}
    values |= {name.removesuffix("_draft"): given[name] for name in _DRAFT if name in given}
    if "n_threads_draft" in given and "n_threads_batch_draft" not in given:
        values["n_threads_batch"] = given["n_threads_draft"]
    values["n_gpu_layers"] = layers("n_gpu_layers_draft", given.get("n_gpu_layers_draft", "auto"))
    return ModelSettings(path="", **values)


def _draft_max(tokens: int | Literal["auto"]) -> int | None:
    if tokens == "auto":
        return None
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 0 <= tokens <= MAX_DRAFT:
        raise UsageError(f'num_speculative_tokens must be "auto" or from 0 to {MAX_DRAFT}, not {tokens!r}')
    return tokens


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with values of the right kinds, lists as tuples."""
    checked = {}
    for name, value in options.items():
        if name in _OTHER_NAMES:
            raise UsageError(f"there is no option {name!r}", f"it is called {_OTHER_NAMES[name]} here")
        if name not in _TYPES:
            raise UsageError(f"there is no option {name!r}", f"there are: {', '.join(sorted(_TYPES))}")
        kind = _TYPES[name].removesuffix(" | None")
        if name.startswith("n_gpu_layers"):
            checked[name] = value
        elif kind.startswith("tuple"):
            checked[name] = as_tuple(name, value)
        else:
            checked[name] = of_kind(name, value, kind)
    return checked


_MODEL = {f.name: str(f.type) for f in fields(ModelSettings)}
_TARGET = tuple(name for name in _MODEL if name not in ("path", "n_ctx", "n_gpu_layers"))
_DRAFT = tuple(name for name in LoadOptions.__annotations__ if name.endswith("_draft"))
_ARGUMENTS = ("target", "draft", "n_slots", "drafters", "draft_max", "exact", "chat_template")
_LOAD = tuple(f.name for f in fields(LoadSettings) if f.name not in _ARGUMENTS)
_TYPES: Mapping[str, str] = {
    **{name: _MODEL[name] for name in _TARGET},
    **{name: _MODEL[name.removesuffix("_draft")] for name in _DRAFT},
    **{f.name: str(f.type) for f in fields(LoadSettings) if f.name in _LOAD},
}
