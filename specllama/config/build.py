"""Builds load settings and sampling parameters from option values.

Shared by the commands, the server, a chat's /set and the Python API. Reads only the files that options name
(a schema, a grammar, a template): models remain names, which models/prepare.py resolves.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from specllama.config import defaults, sources
from specllama.config.defaults import DRAFTERS
from specllama.config.draft_lengths import draft_tokens, tree_branches
from specllama.config.load import ALL_LAYERS, AUTO, LoadSettings, ModelSettings
from specllama.config.named_templates import named_template
from specllama.config.options import IN_PROJECTS, LONG_FLAGS, STORED
from specllama.config.text_file import expanded, read_text
from specllama.core.sampling.params import PARAMETERS, SamplingParams, with_steps
from specllama.drafters import wants_draft_model
from specllama.errors import NotFoundError, UsageError, option
from specllama.rpc.endpoints import endpoints

KINDS: sources.Kinds = {name: (o.kind, o.many) for name, o in STORED.items()}
STEPS = "ekpmt"  # the default of --sampling-seq
SHARED = ("n_batch", "n_ubatch", "n_threads", "n_threads_batch", "use_mmap", "use_mlock", "flash_attn")
"""Fields of ModelSettings that a draft inherits from its target unless they are set for it."""


def resolved(given: Mapping[str, Any]) -> sources.Values:
    """The merged values of flags, environment and files. If a flag names a model, other ways to
    name it are dropped. Raises ConfigError.
    """
    values = sources.resolve(given, KINDS, IN_PROJECTS, aliases=LONG_FLAGS)
    for pair in (("model", "hf_repo"), ("draft_model", "hf_repo_draft")):
        flags = [name for name in pair if name in given]
        if len(flags) == 1:
            values = values.without(*(name for name in pair if name not in flags))
    return values


def load_settings(v: Mapping[str, Any], n_slots: int = 1, kept_seconds: float | None = None) -> LoadSettings:
    """The load settings, with models by name. v: option values by name, as on a command line. kept_seconds:
    see LoadSettings; None for commands that measure, which neither keep prompts on disk nor read them there.

    Raises UsageError, NotFoundError.
    """
    with _placed(v):
        plain = ("draft_vocab", "draft_min", "draft_p_min", "exact", "exact_width", "schema_open")
        load: dict[str, Any] = {name: v[name] for name in (*plain, "ctx_checkpoints") if name in v}
        if "draft_tree" in v:
            load["draft_tree"] = tree_branches(v["draft_tree"])
        if "rpc" in v:
            load["rpc"] = endpoints(v["rpc"])
        if "cache_ram" in v:
            load["cache_ram"] = ram_bytes(v["cache_ram"])
        if kept_seconds is not None:
            load |= {"cache_disk": disk_bytes(v.get("cache_disk", "auto")), "kept_seconds": kept_seconds}
        return assemble(
            _model_name(v, "model", "hf_repo", ""),
            _model_name(v, "draft_model", "hf_repo_draft", defaults.DRAFT_MODEL),
            _model_fields(v, ""),
            _model_fields(v, "_draft"),
            n_slots=n_slots,
            drafters=_drafters(v.get("drafters")),
            draft_max=draft_tokens(v.get("draft_max", defaults.DRAFT_MAX)),
            calibrate=not v.get("no_calibrate", False),
            memory=not v.get("no_memory", False),
            chat_template=_chat_template(v),
            tool_format=v.get("tool_format", "auto"),
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


def sampling(v: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams that are set; the others are the model's or the defaults. v: option values
    by name, as on a command line. Raises UsageError, NotFoundError.
    """
    with _placed(v):
        params = {name: v[name] for name in PARAMETERS if name in v}
        if params.get("seed") == -1:
            del params["seed"]
        if "logit_bias" in params:
            params["logit_bias"] = dict(_bias(text) for text in params["logit_bias"])
        if "sampling_seq" in v:
            params |= _steps(v["sampling_seq"])
        params |= _structure(v)
        SamplingParams.merge(params)
        return params


def existing_file(path: str, name: str) -> str:
    """The path with the home directory for ~, if there is a file. name: of the option. Raises NotFoundError,
    UsageError.
    """
    if not path or "\0" in path:
        raise UsageError("needs the path of a file", option=name)
    try:
        found = expanded(path)
        there = found.exists()
    except OSError as error:
        raise UsageError(f": {path} cannot be used: {error.strerror or error}", option=name) from None
    if not there:
        raise NotFoundError(f": there is no file {path}", "give the path of a GGUF file", option=name)
    return str(found)


def disk_bytes(text: str) -> int:
    """Bytes from a size as "8G", "1.5 GB" or "500 MiB"; AUTO from "auto". Raises UsageError."""
    return _bytes(text, "cache_disk")


def ram_bytes(text: str) -> int:
    """As `disk_bytes`; numbers alone are MiB, and -1 is no limit, as in llama.cpp. Raises UsageError."""
    if re.fullmatch("[0-9]{1,12}", text.strip()):
        return min(int(text) << 20, 2**60)
    return 2**60 if text.strip() == "-1" else _bytes(text, "cache_ram", "a number of MiB, -1 for no limit")


def _bytes(text: str, name: str, others: str = "") -> int:
    """others: further forms of the value, for the message."""
    if text.strip() == "auto":
        return AUTO
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kKmMgGtT]?)([iI]?)[bB]?", text.strip())
    if not found or (not found[2] and (found[3] or float(found[1]) != 0)):
        forms = ", ".join(filter(None, ("a size with its unit, as 8G or 500M", others)))
        more = f"must be {forms}, auto, or 0 for none, not {text!r}"
        raise UsageError(more, option=name)
    unit = float(1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
    return min(round(float(found[1]) * unit), 2**60)


@contextlib.contextmanager
def _placed(v: Mapping[str, Any]) -> Iterator[None]:
    """Make the error for a value from a file or the environment name its origin."""
    try:
        yield
    except (UsageError, NotFoundError) as error:
        name, origins = error.option, v.origins if isinstance(v, sources.Values) else {}
        if name not in origins:
            raise
        raise error.spelled(lambda n, value: origins[name] if n == name else option(n, value)) from None


def _draft(name: str, target: ModelSettings, own: Mapping[str, Any]) -> ModelSettings:
    values = {field: getattr(target, field) for field in SHARED}
    if "n_threads" in own:
        values["n_threads_batch"] = own["n_threads"]
    try:
        return ModelSettings(path=name, **{**values, **own})
    except UsageError as error:
        if error.option not in own:
            raise
        raise error.renamed(f"{error.option}_draft") from None


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


def _model_fields(v: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """The fields of ModelSettings that are set, for the target or (suffix "_draft") for the draft."""
    found: dict[str, Any] = {}
    for name in _MODEL_FIELDS:
        if (key := name + suffix) in v:
            found[name] = _PARSERS[name](v[key], key) if name in _PARSERS else v[key]
    if v.get(f"cpu_moe{suffix}"):
        found["n_cpu_moe"] = -1
    if not suffix:
        found |= {"use_mmap": not v.get("no_mmap", False), "use_mlock": v.get("mlock", False)}
        found["lora"] = tuple(_adapters(v))
    return found


def _adapters(v: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for path in v.get("lora", []):
        yield existing_file(path, "lora"), 1.0
    for text in v.get("lora_scaled", []):
        path, _, given = text.rpartition(":")
        try:
            scale = float(given)
        except ValueError:
            raise UsageError(f"must be FILE:SCALE, not {text!r}", option="lora_scaled") from None
        yield existing_file(path, "lora_scaled"), scale


def _layers(text: str, name: str) -> int:
    if text in ("auto", "all", "-1", "-2"):
        return AUTO if text in ("auto", "-1") else ALL_LAYERS
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"must be a number of layers, auto or all, not {text!r}", option=name)
    return int(text)


def _names(text: str, _name: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _overrides(texts: list[str], name: str) -> tuple[tuple[str, str], ...]:
    found = []
    for part in ",".join(texts).split(","):
        pattern, equals, buffer = part.rpartition("=")
        if not equals or not pattern or not buffer:
            raise UsageError(f"must be PATTERN=BUFFER, not {part!r}", option=name)
        found.append((pattern, buffer))
    return tuple(found)


def _shares(text: str, name: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split("[,/]", text) if part.strip())
    except ValueError:
        raise UsageError(f"must be numbers separated by commas, not {text!r}", option=name) from None


_MODEL_FIELDS = tuple(f.name for f in fields(ModelSettings) if f.name not in ("path", "lora"))
_PARSERS: Mapping[str, Callable[[Any, str], Any]] = {
    "n_gpu_layers": _layers,
    "devices": _names,
    "override_tensor": _overrides,
    "tensor_split": _shares,
}


def _drafters(text: str | None) -> tuple[str, ...]:
    if text is None:
        return DRAFTERS
    names = _names(text, "drafters")
    if names == ("none",):
        return ()
    for name in names:
        if name not in DRAFTERS:
            hint = f"there are: {', '.join(DRAFTERS)}; or none"
            raise UsageError(f": no drafter {name!r}", hint, option="drafters")
    return names


def _chat_template(v: Mapping[str, Any]) -> str | None:
    if "chat_template" in v and "chat_template_file" in v:
        raise UsageError(f"{option('chat_template')} and {option('chat_template_file')} are both given")
    if "chat_template_file" in v:
        return read_text(v["chat_template_file"], "chat_template_file")
    return named_template(v["chat_template"]) if "chat_template" in v else None


def _structure(v: Mapping[str, Any]) -> dict[str, Any]:
    """The schema or grammar that is read from a file. Raises UsageError if more than one is given."""
    names = ("json_schema", "json_schema_file", "grammar", "grammar_file")
    given = [name for name in names if name in v]
    if len(given) > 1:
        raise UsageError(f"{option(given[0])} and {option(given[1])} are both given")
    return {name.removesuffix("_file"): read_text(v[name], name) for name in given if name.endswith("_file")}


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"([0-9]{1,9})(-inf|[+-](?:[0-9]{1,9}\.?[0-9]*|\.[0-9]+))", text.strip())
    if not found:
        form = "ID+BIAS or ID-BIAS, as 15043+1 or 2-inf"
        raise UsageError(f"must be {form}, not {text!r}", option="logit_bias")
    return int(found[1]), float(found[2])


def _steps(letters: str) -> dict[str, Any]:
    """The parameters that --sampling-seq stands for."""
    try:
        return with_steps(letters)
    except ValueError as error:
        raise UsageError(str(error), option="sampling_seq") from None
