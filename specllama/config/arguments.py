"""The arguments of LLM and AsyncLLM: checks their names and types and builds settings from them.

Ranges are checked by load.py; models are not resolved here, and remain names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from specllama.config.build import assemble
from specllama.config.load import LOAD_SETTINGS, MODEL_SETTINGS, LoadSettings
from specllama.config.load_options import Layers
from specllama.config.option import DRAFT, OptionValues, Setting, draft_tokens_of, layers_of, of_kind
from specllama.config.options import as_argument, option_named
from specllama.core.sampling.params import PARAMETERS
from specllama.errors import SpecllamaError, UsageError

NAMED = (
    *("model", "speculative_model", "num_speculative_tokens", "speculative_config", "max_num_seqs"),
    *("max_model_len", "n_gpu_layers", "drafters", "chat_template", "exact", "seed", "log", "progress"),
)
"""The named arguments of LLM."""
OPTIONS: Mapping[str, Setting] = {
    **{name: s for name, s in MODEL_SETTINGS.items() if s.argument not in NAMED},
    **{name + DRAFT: s for name, s in MODEL_SETTINGS.items() if s.draft},
    **{name: s for name, s in LOAD_SETTINGS.items() if s.argument not in NAMED},
}
"""The further arguments of LLM, by name: those of LoadOptions."""
ModelName = str | os.PathLike[str]
_MAX_PATH, _MAX_TOKENS = 4096, 2**31 - 1


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
    drafters: Sequence[str] | str,
    chat_template: str | None,
    exact: bool,
    options: Mapping[str, Any],
) -> LoadSettings:
    """The load settings, with models by name. Raises UsageError and NotFoundError, naming the argument."""
    try:
        given = _known(options)
        target = {name: given[name] for name in MODEL_SETTINGS if name in given}
        draft = {name.removesuffix(DRAFT): value for name, value in given.items() if name.endswith(DRAFT)}
        load = {name: given[name] for name in LOAD_SETTINGS if name in given}
        if max_model_len is not None:
            target["n_ctx"] = _positive("n_ctx", max_model_len)
        return assemble(
            "" if model is None else _model_name(model, "model"),
            "none" if speculative_model is None else _model_name(speculative_model, "draft_model"),
            {**target, "n_gpu_layers": layers_of(n_gpu_layers, "n_gpu_layers")},
            draft,
            n_slots=max_num_seqs,
            drafters=LOAD_SETTINGS["drafters"].accept(drafters, "drafters"),
            draft_max=draft_tokens_of(num_speculative_tokens, "draft_max"),
            exact=of_kind(exact, "exact", "bool"),
            chat_template=LOAD_SETTINGS["chat_template"].accept(chat_template, "chat_template"),
            **load,
        )
    except SpecllamaError as error:
        raise error.with_option_names(as_argument) from None


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


def _known(options: Mapping[str, Any]) -> OptionValues:
    """The options after a check of names and types, in their final form. Raises UsageError, NotFoundError."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"there is no option {name!r}", _hint(name))
    return {name: OPTIONS[name].accept(value, name) for name, value in options.items()}


def _hint(name: str) -> str:
    """What an unknown argument is called here; else those that resemble it, or all."""
    import difflib

    option = option_named(name)
    if option in PARAMETERS:
        return f"it is a sampling parameter: SamplingParams({option}=…)"
    called = as_argument(option, None).partition("=")[0]
    if name in _OTHER_NAMES or called in (*OPTIONS, *NAMED):
        return f"it is called {_OTHER_NAMES.get(name, called)} here"
    names = [*NAMED, *OPTIONS]
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


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise UsageError(f"must be a whole number from 1 to {_MAX_TOKENS}, not {value!r}", option=name)
    return value


_OTHER_NAMES = {
    name: as_argument(name, None) for name in ("n_ctx", "n_slots", "draft_model", "draft_max")
} | {"draft": "speculative_model"}
