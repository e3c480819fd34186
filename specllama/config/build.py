"""From option values to settings: what a command line means. Shared by all commands that load models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specllama.cli.download import library
from specllama.config import rpc_endpoints as rpc
from specllama.config import sources as config
from specllama.config.load import ALL_LAYERS, AUTO, DRAFTERS, LoadSettings, ModelSettings
from specllama.config.options_server import STORED
from specllama.core.sampling.params import SamplingParams
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import NotFoundError, UsageError
from specllama.models.names import check_text
from specllama.models.prepare import ready

_SAMPLING_STEPS = "ekpmt"
_ROPE = (
    "rope_scaling", "rope_scale", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor",
    "yarn_attn_factor", "yarn_beta_slow", "yarn_beta_fast",
)  # fmt: skip
_SAMPLING = (
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty", "max_tokens", "stop", "ignore_eos", "logprobs",
)  # fmt: skip


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of flags, environment and files together; of two ways to name a model the flag's."""
    values = config.resolve(given, {name: (o.kind, o.many) for name, o in STORED.items()})
    for pair in (("model", "hf_repo"), ("draft_model", "hf_repo_draft")):
        flags = [name for name in pair if name in given]
        if len(flags) == 1:
            values = {name: v for name, v in values.items() if name not in pair or name in flags}
    return values


def load_settings(v: Mapping[str, Any], n_slots: int = 1) -> LoadSettings:
    """Which models to load and how; models that are named and not on disk are downloaded, last of all.

    Raises UsageError, NotFoundError and what models/ready.py raises.
    """
    target = _target(v)
    drafters = _drafters(v.get("drafters"))
    name = _named(v, "draft_model", "hf_repo_draft", "auto") if "model" in drafters else "none"
    settings = LoadSettings(
        target=target,
        draft=None if name == "none" else _draft(v, target),
        n_slots=n_slots,
        drafters=drafters,
        draft_max=_draft_max(v.get("draft_max")),
        draft_min=v.get("draft_min", 0),
        draft_p_min=v.get("draft_p_min", 0.0),
        exact=v.get("exact", False),
        calibrate=not v.get("no_calibrate", False),
        chat_template=_template(v),
        rpc=rpc.endpoints(v["rpc"]) if "rpc" in v else (),
        memory=not v.get("no_memory", False),
    )
    return _found(settings, v, name)


def _found(settings: LoadSettings, v: Mapping[str, Any], draft_name: str) -> LoadSettings:
    """The settings with paths for names."""
    name = _named(v, "model", "hf_repo", str(EMBEDDED_TARGET))
    if "model" not in v and "hf_repo" not in v and draft_name in ("auto", "none"):
        paths = str(EMBEDDED_TARGET), str(EMBEDDED_DRAFT)
    else:
        found = ready(library(), name, draft_name, v.get("force", False))
        paths = found.target, found.draft or ""
    draft = replace(settings.draft, path=paths[1]) if settings.draft is not None and paths[1] else None
    return replace(settings, target=replace(settings.target, path=paths[0]), draft=draft)


def _named(v: Mapping[str, Any], path: str, repo: str, default: str) -> str:
    """A model's name: from -m and -md, or a repository from -hf and -hfd."""
    if repo not in v:
        return str(v.get(path, default))
    flags = {"model": ("-m", "-hf"), "draft_model": ("-md", "-hfd")}[path]
    if path in v:
        raise UsageError(f"{flags[0]} and {flags[1]} are both given")
    check_text(v[repo], flags[1])
    return "hf:" + str(v[repo]).removeprefix("hf:")


def sampling(v: Mapping[str, Any]) -> dict[str, Any]:
    """What was set of SamplingParams; what was not is the model's or the default. Raises UsageError."""
    params = {name: v[name] for name in _SAMPLING if name in v}
    if (seed := v.get("seed", -1)) != -1:
        params["seed"] = seed
    if "logit_bias" in v:
        params["logit_bias"] = dict(_bias(text) for text in v["logit_bias"])
    if "sampling_seq" in v:
        params |= _switched_off(v["sampling_seq"])
    params |= _structure(v)
    SamplingParams.merge(params)
    return params


def _structure(v: Mapping[str, Any]) -> dict[str, Any]:
    """What the text must obey, from the flag itself or the file that it names."""
    flags = {
        "json_schema": "-j",
        "json_schema_file": "-jf",
        "grammar": "--grammar",
        "grammar_file": "--grammar-file",
    }
    given = [name for name in flags if name in v]
    if len(given) > 1:
        raise UsageError(f"{flags[given[0]]} and {flags[given[1]]} are both given")
    found = {}
    for name in given:
        text = read_text(v[name], flags[name]) if name.endswith("_file") else v[name]
        found[name.removesuffix("_file")] = text
    return found


def find_file(name: str, flag: str) -> str:
    """The path of a file that a flag names. Raises NotFoundError, UsageError."""
    check_text(name, flag)
    try:
        there = Path(name).exists()
    except OSError as error:
        raise UsageError(f"{flag}: {name} cannot be used: {error.strerror or error}") from None
    if not there:
        raise NotFoundError(f"{flag}: there is no file {name}", "give the path of a GGUF file")
    return name


def _target(v: Mapping[str, Any]) -> ModelSettings:
    lora = [(p, 1.0) for p in v.get("lora", [])] + [_scaled(text) for text in v.get("lora_scaled", [])]
    for adapter, _ in lora:
        find_file(adapter, "--lora")
    return ModelSettings(
        path="",
        **_common(v, ""),
        n_ctx=v.get("n_ctx", 0),
        n_batch=v.get("n_batch", 2048),
        n_ubatch=v.get("n_ubatch", 512),
        n_threads=v.get("n_threads", 0),
        n_threads_batch=v.get("n_threads_batch", 0),
        split_mode=v.get("split_mode", "layer"),
        tensor_split=_floats(v.get("tensor_split", ""), "-ts"),
        main_gpu=v.get("main_gpu", 0),
        use_mmap=not v.get("no_mmap", False),
        use_mlock=v.get("mlock", False),
        flash_attn=v.get("flash_attn", "auto"),
        lora=tuple(lora),
        **{name: v[name] for name in _ROPE if name in v},
    )


def _draft(v: Mapping[str, Any], target: ModelSettings) -> ModelSettings:
    return ModelSettings(
        path="",
        **_common(v, "_draft"),
        n_ctx=v.get("n_ctx_draft", 0),
        n_batch=target.n_batch,
        n_ubatch=target.n_ubatch,
        n_threads=v.get("n_threads_draft", target.n_threads),
        n_threads_batch=v.get("n_threads_batch_draft", v.get("n_threads_draft", target.n_threads_batch)),
        use_mmap=target.use_mmap,
        use_mlock=target.use_mlock,
        flash_attn=target.flash_attn,
    )


def _common(v: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """Settings that target and draft have a flag for each."""
    devices = v.get(f"devices{suffix}", "")
    return {
        "n_gpu_layers": _layers(v.get(f"n_gpu_layers{suffix}", "auto"), f"-ngl{'d' if suffix else ''}"),
        "devices": tuple(part.strip() for part in devices.split(",") if part.strip()),
        "override_tensor": tuple(
            _override(part) for text in v.get(f"override_tensor{suffix}", []) for part in text.split(",")
        ),
        "n_cpu_moe": -1 if v.get(f"cpu_moe{suffix}") else v.get(f"n_cpu_moe{suffix}", 0),
        "cache_type_k": v.get(f"cache_type_k{suffix}", "f16"),
        "cache_type_v": v.get(f"cache_type_v{suffix}", "f16"),
    }


def _layers(text: str, flag: str) -> int:
    if text in ("auto", "all", "-1", "-2"):
        return AUTO if text in ("auto", "-1") else ALL_LAYERS
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"{flag} must be a number of layers, auto or all, not {text!r}")
    return int(text)


def _override(text: str) -> tuple[str, str]:
    pattern, equals, buffer = text.rpartition("=")
    if not equals or not pattern or not buffer:
        raise UsageError(f"-ot must be PATTERN=BUFFER, not {text!r}")
    return pattern, buffer


def _drafters(text: str | None) -> tuple[str, ...]:
    if text is None:
        return DRAFTERS
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if names == ("none",):
        return ()
    for name in names:
        if name not in DRAFTERS:
            raise UsageError(f"--drafters: no drafter {name!r}", f"there are: {', '.join(DRAFTERS)}; or none")
    return names


def _draft_max(text: str | None) -> int | None:
    if text is None or text == "auto":
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(f"--draft-max must be a whole number from 0 or auto, not {text!r}")
    return int(text)


def _template(v: Mapping[str, Any]) -> str | None:
    if "chat_template" in v and "chat_template_file" in v:
        raise UsageError("--chat-template and --chat-template-file are both given")
    if "chat_template_file" in v:
        return read_text(v["chat_template_file"], "--chat-template-file")
    template: str | None = v.get("chat_template")
    return template


def read_text(path: str, flag: str) -> str:
    """The text of a file that a flag names; bytes that are no UTF-8 become U+FFFD. Raises NotFoundError,
    UsageError.
    """
    if "\0" in path:
        raise UsageError(f"{flag}: not a usable path")
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        raise NotFoundError(f"{flag}: there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{flag}: {path} cannot be read: {error.strerror or error}") from None


def _floats(text: str, flag: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in re.split("[,/]", text) if part.strip())
    except ValueError:
        raise UsageError(f"{flag} must be numbers separated by commas, not {text!r}") from None


def _scaled(text: str) -> tuple[str, float]:
    path, _, scale = text.rpartition(":")
    try:
        return path, float(scale)
    except ValueError:
        raise UsageError(f"--lora-scaled must be FILE:SCALE, not {text!r}") from None


def _bias(text: str) -> tuple[int, float]:
    found = re.fullmatch(r"([0-9]{1,9})(-inf|[+-](?:[0-9]{1,9}\.?[0-9]*|\.[0-9]+))", text.strip())
    if not found:
        raise UsageError(f"--logit-bias must be ID+BIAS or ID-BIAS, as 15043+1 or 2-inf, not {text!r}")
    return int(found[1]), float(found[2])


def _switched_off(letters: str) -> dict[str, Any]:
    """The steps that --sampling-seq leaves out, as parameters that do nothing."""
    if "".join(c for c in _SAMPLING_STEPS if c in letters) != letters:
        raise UsageError(
            f"--sampling-seq must be letters of {_SAMPLING_STEPS} in that order, not {letters!r}"
        )
    neutral: dict[str, dict[str, Any]] = {
        "e": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
        "k": {"top_k": 0},
        "p": {"top_p": 1.0},
        "m": {"min_p": 0.0},
        "t": {"temperature": 1.0},
    }
    return {name: value for c in _SAMPLING_STEPS if c not in letters for name, value in neutral[c].items()}
