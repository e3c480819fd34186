"""The engine process's description of a build of llama.cpp, its devices, and the models that it has loaded.

Plain data that crosses the pipe; knows no messages.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace

from specllama.calls.formats import choose, named
from specllama.calls.scanner import CallReader, ChannelReader
from specllama.calls.tools import NO_TOOLS, Tools
from specllama.core.sampling.params import SamplingParams
from specllama.errors import Note, OptionNames, with_option_names
from specllama.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as llama.cpp names it; its memory in bytes."""

    name: str
    description: str
    gpu: bool
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """A build of llama.cpp: versions, registered backends, what it supports. features: what each backend was
    compiled for, by backend. kernels: the instruction set of specllama's kernels, with "+amx" where weights
    are packed for AMX, "" if they are not used; kernels_reason: why not.
    """

    llama_cpp_python: str
    llama_cpp: str
    ggml: str
    backends: list[str]
    gpu_offload: bool
    mmap: bool
    mlock: bool
    rpc: bool
    features: dict[str, list[str]]
    devices: tuple[DeviceInfo, ...]
    kernels: str = ""
    kernels_reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model. params: its number of weights; quant: as llama.cpp names it, "Q4_K_M"."""

    path: str
    name: str
    params: int
    quant: str
    n_gpu_layers: int


@dataclass(frozen=True, slots=True)
class EmbeddingInfo:
    """How a model makes vectors. pooling: one of POOLING_TYPES. n_values: numbers of a vector. shortens:
    whether its first numbers are a vector too.
    """

    pooling: str
    n_values: int
    shortens: bool

    @property
    def ranks(self) -> bool:
        """Whether it scores documents, and makes no vectors."""
        return self.pooling == "rank"


# fmt: off
_INTERNAL = {  # fields of LoadInfo that `LLM.info` does not have
    "model_based", "forced", "call_format", "call_tokens", "template_reasons", "infill", "architecture",
    "n_layer", "host_bytes", "device_bytes", "gpus",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadInfo:
    """The loaded models, and how they are used.

    draft: a draft model, without one the file with a trained head, which can be the target's own; None where
    neither is used. head: kind and size of the head, "" without one; head_in_target: whether it is a part of
    the target, and drafts together with a draft model if there is one. verdict: how the draft's vocabulary
    relates to the target's. n_ctx, n_ctx_draft: tokens of all slots together. drafters: names as in
    LoadSettings; memory: whether earlier requests are drafted from. draft_max: as asked for, longest_draft:
    what fits at most. off_reason: why nothing drafts, "" where something does. n_ctx_train: tokens;
    file_bytes: of the target's file. end_ids: tokens that end a generation. sampling: defaults of the program
    and of the model's file. template: the source of the chat template, "" where there is none;
    template_works: whether it can be used. embedding: of a model that makes vectors, None for one that writes
    texts. vision: whether it reads images, mmproj: by the projector in this file.

    The fields of _INTERNAL are for the program itself: model_based, forced: the drafters that are a model and
    those of what a grammar forces. call_format: name of the format in which the model writes tool calls;
    call_tokens: its texts that are control tokens; template_reasons: whether the chat template knows
    reasoning. architecture, n_layer: of the target's file. infill: whether the vocabulary has tokens for
    filling a gap. host_bytes, device_bytes: memory of all models by the plan. gpus: the GPUs of the build,
    with the memory that is free after the load.
    """

    target: ModelInfo
    draft: ModelInfo | None = None
    verdict: str | None = None
    n_ctx: int
    n_ctx_draft: int = 0
    n_vocab: int
    n_threads: int
    drafters: tuple[str, ...] = ()
    memory: bool = False
    draft_max: int | None = 0
    longest_draft: int = 0
    notes: tuple[Note, ...]
    off_reason: str
    load_seconds: float
    n_slots: int = 0
    n_ctx_train: int
    file_bytes: int
    end_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    template: str = ""
    template_works: bool = False
    bos_token: str
    eos_token: str
    head: str = ""
    head_in_target: bool = False
    model_based: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    call_format: str = ""
    call_tokens: tuple[str, ...] = ()
    template_reasons: bool = False
    infill: bool = False
    architecture: str = ""
    n_layer: int = 0
    host_bytes: int = 0
    device_bytes: int = 0
    gpus: tuple[DeviceInfo, ...] = ()
    embedding: EmbeddingInfo | None = None
    vision: bool = False
    mmproj: str = ""

    @property
    def gpu_share(self) -> float:
        on_gpu = self.target.n_gpu_layers
        return 1.0 if on_gpu < 0 else min(1.0, on_gpu / (self.n_layer + 1))

    @property
    def has_draft_model(self) -> bool:
        if self.draft is None or not self.head:
            return self.draft is not None
        return self.head_in_target and self.draft.path != self.target.path

    def answer_reader(self, tools: Tools | None) -> CallReader | None:
        """The reader of calls of these tools, and of channels, in a chat's answer; None where all is text."""
        form, own = named(self.call_format), choose(self.template)
        channels = own if own.reasons else form
        if tools is None:
            return channels.reader(NO_TOOLS, self.call_tokens) if channels.reasons else None
        if channels is form:
            return form.reader(tools, self.call_tokens)
        return ChannelReader(channels.reader(NO_TOOLS, self.call_tokens), form.reader(tools, ()))

    @property
    def speculation(self) -> str:
        return "off" if self.off_reason else "on"

    def with_option_names(self, names: OptionNames) -> LoadInfo:
        notes = tuple(note.with_option_names(names) for note in self.notes)
        return replace(self, notes=notes, off_reason=with_option_names(self.off_reason, names))

    def to_dict(self) -> JsonObject:
        """As plain data with the keys that `LLM.info` has."""
        fields = {name: value for name, value in asdict(self).items() if name not in _INTERNAL}
        renamed = {
            "most_drafted": fields.pop("longest_draft"),
            "reason": fields.pop("off_reason"),
            "chat_template": fields.pop("template_works"),
        }
        return fields | {
            **renamed,
            "drafters": list(self.drafters),
            "notes": [str(note) for note in self.notes],
            "speculation": self.speculation,
            "end_ids": list(self.end_ids),
        }
