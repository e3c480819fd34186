"""Builds load settings and sampling parameters from option values.

Shared by the commands, the server, a chat's /set and the Python API. Reads only the files that options name
(a schema, a grammar, a template): models remain names, which models/prepare.py resolves. Which options set
which field, and how their values are written, stands on the fields (load.py).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from specllama.config import defaults, sources
from specllama.config.defaults import DRAFTERS
from specllama.config.load import LOAD_SETTINGS, MODEL_SETTINGS, LoadSettings, ModelSettings
from specllama.config.option import DRAFT, OptionValues, Setting, disk_bytes
from specllama.config.options import IN_PROJECTS, LONG_FLAGS, SEPARATED, STORED
from specllama.config.text_file import read_text
from specllama.core.sampling.params import PARAMETERS, SamplingParams, with_steps
from specllama.drafters import wants_draft_model
from specllama.errors import NotFoundError, UsageError, option
from specllama.json_types import JsonObject

KINDS: sources.Kinds = {
    name: sources.ValueKind(o.kind, o.many, o.values, name in SEPARATED, tuple(o.flags))
    for name, o in STORED.items()
}


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files. Raises ConfigError."""
    return sources.resolve(given, KINDS, IN_PROJECTS, aliases=LONG_FLAGS)


def load_settings(v: Mapping[str, Any], n_slots: int = 1, kept_seconds: float | None = None) -> LoadSettings:
    """The load settings, with models by name. v: option values by name, as on a command line. kept_seconds:
    see LoadSettings; None for commands that measure, which neither keep prompts on disk nor read them there.

    Raises UsageError, NotFoundError.
    """
    with _placed(v):
        load = _fields(LOAD_SETTINGS, v)
        load |= {"n_slots": n_slots, "cache_disk": 0}
        if kept_seconds is not None:
            load |= {"cache_disk": disk_bytes(v.get("cache_disk", "auto")), "kept_seconds": kept_seconds}
        return assemble(
            _model_name(v, "model", "hf_repo", ""),
            _model_name(v, "draft_model", "hf_repo_draft", defaults.DRAFT_MODEL),
            _fields(MODEL_SETTINGS, v),
            _fields(MODEL_SETTINGS, v, DRAFT),
            **load,
        )


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
    with _placed(v):
        params = {name: v[name] for name in PARAMETERS if name in v}
        if "seed" in params and not _is_seed(params["seed"]):
            del params["seed"]
        if "logit_bias" in params:
            params["logit_bias"] = dict(_bias(text) for text in params["logit_bias"])
        if "sampling_seq" in v:
            params |= _steps(v["sampling_seq"])
        params |= _structure(v)
        SamplingParams.merge(params)
        return params


def _is_seed(value: int) -> bool:
    """Whether a value is a seed, and not -1, for which a random one is taken. Raises UsageError."""
    highest = int(PARAMETERS["seed"].high)
    if not -1 <= value <= highest:
        raise UsageError(
            f"must be a whole number from 0 to {highest}, or -1 for a random one, not {value}", option="seed"
        )
    return value != -1


@contextlib.contextmanager
def _placed(v: Mapping[str, Any]) -> Iterator[None]:
    """Make the error for a value from a file or the environment name its origin."""
    try:
        yield
    except (UsageError, NotFoundError) as error:
        name, origins = error.option, v.origins if isinstance(v, sources.Values) else {}
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


def _fields(table: Mapping[str, Setting], v: Mapping[str, Any], suffix: str = "") -> OptionValues:
    """The fields that option values set, for the target or (suffix DRAFT) for the draft."""
    values = {name: (entry, entry.given(v, suffix)) for name, entry in table.items()}
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
        raise UsageError(f"must be {form}, not {text!r}", option="logit_bias")
    return int(match[1]), float(match[2])


def _steps(letters: str) -> OptionValues:
    """The parameters that --sampling-seq stands for."""
    try:
        return with_steps(letters)
    except ValueError as error:
        raise UsageError(str(error), option="sampling_seq") from None
