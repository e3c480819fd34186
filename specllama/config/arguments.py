"""The arguments of LLM and AsyncLLM: checks their names and types and builds settings from them.

Ranges are checked by load.py; models are not resolved here, and remain names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from specllama.config.build import assemble, disk_bytes, existing_file, ram_bytes
from specllama.config.draft_lengths import tree_branches
from specllama.config.load import ALL_LAYERS, AUTO, LoadSettings, ModelSettings
from specllama.config.named_templates import named_template
from specllama.config.options import as_argument, option_named
from specllama.core.sampling.params import PARAMETERS
from specllama.errors import SpecllamaError, UsageError
from specllama.rpc.endpoints import endpoints

NAMED = (
    *("model", "speculative_model", "num_speculative_tokens", "speculative_config", "max_num_seqs"),
    *("max_model_len", "n_gpu_layers", "drafters", "chat_template", "exact", "seed", "log", "progress"),
)
"""The named arguments of LLM."""
Layers = int | Literal["auto", "all"]
ModelName = str | os.PathLike[str]
_MAX_PATH, _MAX_TOKENS = 4096, 2**31 - 1
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "true or false"),
    "int": ((int,), "a whole number"),
    "str": ((str,), "a text"),
    "float": ((int, float), "a number"),
}


class LoadOptions(TypedDict, total=False):
    """Load options besides the named arguments, named as the flags. Names that end in `_draft` are the
    draft's, whose threads and batch sizes default to the target's. See ModelSettings and LoadSettings.
    """

    n_batch: int
    n_ubatch: int
    n_threads: int
    n_threads_batch: int
    devices: Sequence[str]
    split_mode: str
    tensor_split: Sequence[float]
    main_gpu: int
    tensor_parallel_size: int
    override_tensor: Sequence[tuple[str, str]]
    n_cpu_moe: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    swa_full: bool | None
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
    draft_vocab: str
    draft_tree: int | Literal["auto", "off"]
    draft_min: int
    draft_p_min: float
    exact_width: int
    schema_open: bool
    calibrate: bool
    memory: bool
    tool_format: str
    rpc: Sequence[str] | str
    cache_disk: int | str
    kept_seconds: float
    cache_ram: int | str
    ctx_checkpoints: int | None


class SpeculativeConfig(TypedDict, total=False):
    """vLLM's dict for a draft model and the number of tokens that it drafts."""

    model: ModelName | None
    num_speculative_tokens: int | Literal["auto"]


def settings_of_arguments(
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
) -> LoadSettings:
    """The load settings, with models by name. Raises UsageError and NotFoundError, naming the argument."""
    try:
        given = _known(options)
        target = {name: given[name] for name in _TARGET if name in given}
        draft = {name.removesuffix("_draft"): given[name] for name in _DRAFT if name in given}
        if max_model_len is not None:
            target["n_ctx"] = _positive("n_ctx", max_model_len)
        load = {name: given[name] for name in _LOAD if name in given}
        return assemble(
            "" if model is None else _model_name(model, "model"),
            "none" if speculative_model is None else _model_name(speculative_model, "draft_model"),
            {**target, "n_gpu_layers": _layers(n_gpu_layers, "n_gpu_layers")},
            draft,
            n_slots=max_num_seqs,
            drafters=_names(drafters, "drafters"),
            draft_max=_draft_tokens(num_speculative_tokens),
            exact=_of_kind(exact, "exact", "bool"),
            chat_template=_template(chat_template),
            **load,
        )
    except SpecllamaError as error:
        raise error.spelled(as_argument) from None


def _template(given: str | None) -> str | None:
    return None if given is None else named_template(_of_kind(given, "chat_template", "str"))


def speculative(
    config: SpeculativeConfig | None,
    model: ModelName | None,
    tokens: int | Literal["auto"],
) -> tuple[ModelName | None, int | Literal["auto"]]:
    """(draft model, number of tokens) from the two arguments or from vLLM's dict. Raises UsageError."""
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
            f"known: {', '.join(sorted(known))}; use drafters for other drafters",
        )
    return config.get("model", "auto"), config.get("num_speculative_tokens", "auto")


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options after a check of names and types, with lists as tuples. Raises UsageError."""
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _TYPES:
            raise UsageError(f"there is no option {name!r}", _hint(name))
        kind = _TYPES[name].removesuffix(" | None")
        if name.startswith("n_gpu_layers"):
            checked[name] = _layers(value, name)
        elif name == "cache_disk" and isinstance(value, str):
            checked[name] = disk_bytes(value)
        elif name == "draft_tree" and isinstance(value, str):
            checked[name] = tree_branches(value)
        elif name == "cache_ram" and isinstance(value, str):
            checked[name] = ram_bytes(value)
        elif kind.startswith("tuple"):
            checked[name] = _as_tuple(value, name)
        else:
            checked[name] = _of_kind(value, name, kind)
    return checked


def _hint(name: str) -> str:
    """What an unknown argument is called here; else those that resemble it, or all."""
    import difflib

    option = option_named(name)
    if option in PARAMETERS:
        return f"it is a sampling parameter: SamplingParams({option}=…)"
    called = as_argument(option, None).partition("=")[0]
    if name in _OTHER_NAMES or called in (*_TYPES, *NAMED):
        return f"it is called {_OTHER_NAMES.get(name, called)} here"
    names = [*NAMED, *_TYPES]
    if close := difflib.get_close_matches(str(name)[:100], names, n=3):
        return f"did you mean {' or '.join(close)}?"
    return f"there are: {', '.join(sorted(names))}"


def _model_name(name: ModelName, argument: str) -> str:
    """A model's name or path as text; a path object becomes absolute, so that it is not taken for a name."""
    if not isinstance(name, (str, os.PathLike)):
        raise UsageError(f"must be the path of a GGUF file or a model's name, not {name!r}", option=argument)
    path = os.fspath(name)
    if not isinstance(path, str) or not path or "\0" in path or len(path) > _MAX_PATH:
        raise UsageError("must be the path of a GGUF file or a model's name", option=argument)
    return path if isinstance(name, str) else os.path.abspath(path)


def _layers(given: Layers, name: str) -> int:
    if given in ("auto", "all"):
        return AUTO if given == "auto" else ALL_LAYERS
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise UsageError(f'must be a number of layers, "auto" or "all", not {given!r}', option=name)
    return given


def _draft_tokens(tokens: int | Literal["auto"]) -> int | None:
    if tokens == "auto":
        return None
    return int(_of_kind(tokens, "draft_max", "int"))


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise UsageError(f"must be a whole number from 1 to {_MAX_TOKENS}, not {value!r}", option=name)
    return value


def _of_kind(value: Any, name: str, kind: str) -> Any:
    """The value, if it is of this kind. Raises UsageError."""
    types, description = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UsageError(f"must be {description}, not {value!r}", option=name)
    return value


def _as_tuple(value: Any, name: str) -> tuple[Any, ...]:
    """The value of a tuple field of ModelSettings or LoadSettings. Raises UsageError."""
    if name.startswith("devices"):
        return _names(value, name)
    if name == "rpc":
        return endpoints(value if isinstance(value, str) else _names(value, name))
    try:
        if name == "tensor_split":
            return tuple(float(share) for share in value)
        if name == "lora":
            return tuple((_adapter(path), float(scale)) for path, scale in value)
        return tuple((str(pattern), str(buffer)) for pattern, buffer in value)
    except (TypeError, ValueError):
        shape = "numbers" if name == "tensor_split" else "pairs"
        raise UsageError(f"must be a list of {shape}, not {value!r}", option=name) from None


def _adapter(path: ModelName) -> str:
    return existing_file(os.path.expanduser(os.fspath(path)), "lora")


def _names(value: Any, name: str) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(v, str) for v in value)
    ):
        raise UsageError(f"must be a list of names, not {value!r}", option=name)
    return tuple(value)


_OTHER_NAMES = {
    name: as_argument(name, None) for name in ("n_ctx", "n_slots", "draft_model", "draft_max")
} | {"draft": "speculative_model"}
_ARGUMENTS = ("target", "draft", "n_slots", "drafters", "draft_max", "exact", "chat_template")
_MODEL = {f.name: str(f.type) for f in fields(ModelSettings)}
_TARGET = tuple(name for name in _MODEL if name not in ("path", "n_ctx", "n_gpu_layers"))
_DRAFT = tuple(name for name in LoadOptions.__annotations__ if name.endswith("_draft"))
_LOAD = tuple(f.name for f in fields(LoadSettings) if f.name not in _ARGUMENTS)
_TYPES: Mapping[str, str] = {
    **{name: _MODEL[name] for name in _TARGET},
    **{name: _MODEL[name.removesuffix("_draft")] for name in _DRAFT},
    **{f.name: str(f.type) for f in fields(LoadSettings) if f.name in _LOAD},
}
