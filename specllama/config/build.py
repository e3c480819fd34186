"""Builds load settings and sampling parameters from option values, and from the arguments of LLM.

Shared by the commands, the server, a chat's /set and the Python API. Reads only the files that options name
(a schema, a grammar, a template): models remain names, which models/prepare.py resolves. Which options set
which field, how their values are written and their ranges stand on the fields (load.py).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypedDict

from specllama.config import defaults
from specllama.config.defaults import DRAFTERS
from specllama.config.forms import TOKENS, disk_bytes
from specllama.config.load import EMBEDDER_FIELDS, LOAD_SETTINGS, MODEL_SETTINGS, LoadSettings, ModelSettings
from specllama.config.options import as_argument, option_named
from specllama.config.sources import Values
from specllama.config.text_file import read_text
from specllama.core.sampling.params import PARAMETERS, SamplingParams, step_names, steps_of
from specllama.drafters import wants_draft_model
from specllama.errors import NotFoundError, SpecllamaError, UsageError, option, quoted
from specllama.json_types import JsonObject
from specllama.option import DRAFT, Option, OptionValues
from specllama.wording import similar


def load_settings(v: Mapping[str, Any], n_slots: int = 1, kept_seconds: float | None = None) -> LoadSettings:
    """The load settings, with models by name. v: option values by name, as on a command line. kept_seconds:
    see LoadSettings; None for commands that measure, which neither keep prompts on disk nor read them there,
    and load no projector.

    Raises UsageError, NotFoundError.
    """
    with placed(v):
        load = _fields(LOAD_SETTINGS, v)
        measures = kept_seconds is None
        if measures or (v.get("no_mmproj") and "mmproj" not in v):
            load["mmproj"] = "none"
        load |= {"n_slots": n_slots, "cache_disk": 0}
        if kept_seconds is not None:
            load |= {"cache_disk": disk_bytes(v.get("cache_disk", "auto")), "kept_seconds": kept_seconds}
        return assemble(
            _model_name(v, "model", "hf_repo", ""),
            _model_name(v, "draft_model", "hf_repo_draft", defaults.DRAFT_MODEL),
            _fields(MODEL_SETTINGS, v),
            _fields(MODEL_SETTINGS, v, draft=True),
            **load,
        )


def embedder_settings(v: Mapping[str, Any], alone: bool) -> LoadSettings:
    """The load settings of the embedding model, by name. v: option values by name, as on a command line.
    alone: there is no chat model, whose context -c sets. Raises UsageError.
    """
    with placed(v):
        names = (*EMBEDDER_FIELDS, "n_ctx") if alone else EMBEDDER_FIELDS
        fields = {name: value for name, value in _fields(MODEL_SETTINGS, v).items() if name in names}
        if not v.get("embeddings"):
            raise UsageError("needs a model: a file, a name, or user/repo:QUANT", option="embeddings")
        target = ModelSettings(path=str(v["embeddings"]), **fields)
        return LoadSettings(target=target, drafters=(), pooling=v.get("pooling", "auto"))


def assemble(
    model: str, draft_model: str, target: Mapping[str, Any], draft: Mapping[str, Any], **load: Any
) -> LoadSettings:
    """Load settings from the given fields. Raises UsageError.

    model, draft_model: names; "" is the default model, "auto" the known draft for the target, "none" no
    draft. target, draft: fields of ModelSettings; load: fields of LoadSettings.
    """
    settings = ModelSettings(path=model, **target)
    drafts = wants_draft_model(load.get("drafters", DRAFTERS)) and draft_model != "none"
    return LoadSettings(
        target=settings, draft=_draft(draft_model, settings, draft) if drafts else None, **load
    )


def sampling(v: Mapping[str, Any]) -> JsonObject:
    """The fields of SamplingParams that are set; the others are the model's or the defaults. v: option values
    by name, as on a command line. Raises UsageError, NotFoundError.
    """
    with placed(v):
        params = {name: v[name] for name in PARAMETERS if name in v}
        if (seed := PARAMETERS["seed"].checked(params.pop("seed", None))) is not None:
            params["seed"] = seed
        if "logit_bias" in params:
            params["logit_bias"] = dict(_bias(text) for text in params["logit_bias"])
        if params.get("dry_sequence_breakers") == ["none"]:
            params["dry_sequence_breakers"] = []
        files = v.origins if isinstance(v, Values) else {}
        later = "samplers" in files and "sampling_seq" not in files  # flags count before files
        if "sampling_seq" in v and (later or "samplers" not in v):
            params["samplers"] = steps_of(v["sampling_seq"])
        if "samplers" in params:
            params.setdefault("infill_sampling", "infill" in step_names(params["samplers"]))
        params |= _structure(v)
        SamplingParams.merge(params)
        return params


@contextlib.contextmanager
def placed(v: Mapping[str, Any]) -> Iterator[None]:
    """Make the error for a value from a file or the environment name its origin."""
    try:
        yield
    except (UsageError, NotFoundError) as error:
        name, origins = error.option, v.origins if isinstance(v, Values) else {}
        if name not in origins:
            raise
        raise error.with_option_names(
            lambda n, value: origins[name] if n == name else option(n, value)
        ) from None


def _draft(name: str, target: ModelSettings, own: Mapping[str, Any]) -> ModelSettings:
    values = {name: getattr(target, name) for name, entry in MODEL_SETTINGS.items() if entry.inherited}
    if "n_threads" in own:
        values["n_threads_batch"] = own["n_threads"]
    try:
        return ModelSettings(path=name, **{**values, **own})
    except UsageError as error:
        if error.option not in own:
            raise
        raise error.renamed(f"{error.option}{DRAFT}") from None


def _model_name(v: Mapping[str, Any], path: str, repo: str, default: str) -> str:
    """A model's name: from -m and -md, or a repository from -hf and -hfd."""
    if repo not in v:
        if path in v and not v[path]:
            raise UsageError("needs a model: a file, a name, or user/repo:QUANT", option=path)
        return str(v.get(path, default))
    if path in v:
        raise UsageError(f"{option(path)} and {option(repo)} are both given")
    if not v[repo]:
        raise UsageError("needs a repository, as user/repo:Q4_K_M", option=repo)
    return "hf:" + str(v[repo]).removeprefix("hf:")


def _fields(table: Mapping[str, Option], v: Mapping[str, Any], draft: bool = False) -> OptionValues:
    """The fields that option values set, for the target or for the draft."""
    values = {name: (entry, entry.given(v, draft)) for name, entry in table.items()}
    return {name: entry.read(given) for name, (entry, given) in values.items() if given}


def _structure(v: Mapping[str, Any]) -> OptionValues:
    """The schema or grammar that is read from a file. Raises UsageError if more than one is given."""
    names = ("json_schema", "json_schema_file", "grammar", "grammar_file")
    given = [name for name in names if name in v]
    if len(given) > 1:
        raise UsageError(f"{option(given[0])} and {option(given[1])} are both given")
    return {name.removesuffix("_file"): read_text(v[name], name) for name in given if name.endswith("_file")}


def _bias(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"([0-9]{1,9})(-inf|[+-](?:[0-9]{1,9}\.?[0-9]*|\.[0-9]+))", text.strip())
    if not match:
        form = "ID+BIAS or ID-BIAS, as 15043+1 or 2-inf"
        raise UsageError(f"must be {form}, not {quoted(text)}", option="logit_bias")
    return int(match[1]), float(match[2])


NAMED = (
    *("model", "speculative_model", "num_speculative_tokens", "speculative_config", "max_num_seqs"),
    *("max_model_len", "n_gpu_layers", "drafters", "chat_template", "exact", "seed", "log", "progress"),
)
"""The named arguments of LLM."""
OPTIONS: Mapping[str, Option] = {
    **{name: s for name, s in MODEL_SETTINGS.items() if (s.argument or name) not in NAMED},
    **{name + DRAFT: s for name, s in MODEL_SETTINGS.items() if s.draft},
    **{name: s for name, s in LOAD_SETTINGS.items() if (s.argument or name) not in NAMED},
}
"""The further arguments of LLM, by name: those of LoadOptions."""
ModelName = str | os.PathLike[str]
_MAX_PATH, _MAX_TOKENS = 4096, 2**31 - 1
_MODEL_FORM = "must be the path of a GGUF file or a model's name"


class SpeculativeConfig(TypedDict, total=False):
    """vLLM's dict for a draft model and the number of tokens that it drafts."""

    model: ModelName | None
    num_speculative_tokens: int | Literal["auto"]


def settings_of_arguments(
    model: ModelName | None,
    speculative_model: ModelName | None,
    max_model_len: int | None,
    named: Mapping[str, Any],
    options: Mapping[str, Any],
) -> LoadSettings:
    """The load settings, with models by name. named: the values of other named arguments, by the fields that
    they set. Raises UsageError and NotFoundError, naming the argument.
    """
    try:
        TOKENS.python(named["draft_max"], "draft_max")  # None, which `accept` takes, is no number
        fields = {**MODEL_SETTINGS, **LOAD_SETTINGS}
        given = {name: fields[name].accept(value, name) for name, value in named.items()} | _known(options)
        target = {name: given[name] for name in MODEL_SETTINGS if name in given}
        draft = {name.removesuffix(DRAFT): value for name, value in given.items() if name.endswith(DRAFT)}
        load = {name: given[name] for name in LOAD_SETTINGS if name in given}
        if max_model_len is not None:
            target["n_ctx"] = _positive("n_ctx", max_model_len)
        return assemble(
            "" if model is None else _model_argument(model, "model"),
            "none" if speculative_model is None else _model_argument(speculative_model, "draft_model"),
            target,
            draft,
            **load,
        )
    except SpecllamaError as error:
        raise error.with_option_names(as_argument) from None


def speculative(
    config: SpeculativeConfig | None, model: ModelName | None, tokens: int | Literal["auto"]
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
            raise UsageError(f"there is no option {quoted(name)}", _hint(name))
    return {name: OPTIONS[name].accept(value, name) for name, value in options.items()}


def _hint(name: str) -> str:
    """What an unknown argument is called here; else those that resemble it, or all."""
    option = option_named(name)
    if option in PARAMETERS:
        return f"it is a sampling parameter: SamplingParams({option}=…)"
    called = as_argument(option, None).partition("=")[0]
    if name in _OTHER_NAMES or called in (*OPTIONS, *NAMED):
        return f"it is called {_OTHER_NAMES.get(name, called)} here"
    names = [*NAMED, *OPTIONS]
    if close := similar(str(name), names):
        return f"did you mean {' or '.join(close)}?"
    return f"there are: {', '.join(sorted(names))}"


def _model_argument(name: ModelName, argument: str) -> str:
    """A model's name or path as text; a path object becomes absolute, so that it is not taken for a name."""
    if not isinstance(name, (str, os.PathLike)):
        raise UsageError(f"{_MODEL_FORM}, not {quoted(name)}", option=argument)
    path = os.fspath(name)
    if not isinstance(path, str) or not path or "\0" in path or len(path) > _MAX_PATH:
        raise UsageError(_MODEL_FORM, option=argument)
    return path if isinstance(name, str) else os.path.abspath(path)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TOKENS:
        raise UsageError(f"must be a whole number from 1 to {_MAX_TOKENS}, not {quoted(value)}", option=name)
    return value


_OTHER_NAMES = {
    name: as_argument(name, None) for name in ("n_ctx", "n_slots", "draft_model", "draft_max")
} | {"draft": "speculative_model"}
