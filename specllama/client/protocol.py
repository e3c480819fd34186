"""What crosses the pipes between a front and its engine process: one JSON object a line. Knows neither
end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, get_args

from specllama.client import wire
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.policy.break_even import BreakEven
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import Note, Spelling, spelled


@dataclass(frozen=True, slots=True)
class Load:
    """To the engine: load these models. verbose: llama.cpp's log goes to stderr. measure_when_idle:
    after answers, while nobody asks, what is not known yet is measured (unless settings.calibrate is off).
    """

    settings: LoadSettings
    verbose: bool = False
    measure_when_idle: bool = False


@dataclass(frozen=True, slots=True)
class Generate:
    """To the engine: answer `messages` through the chat template, or continue `prompt`, or `ids`.

    params: what the user set of SamplingParams, the model's own defaults fill in. speculate: False decodes
    plainly. follows: id of an earlier generation of `messages` whose prompt and answer these messages begin
    with; its ids are kept where the template writes the same text for them. forced: the text, or the ids,
    that is written whatever the model would write, to its end or to max_tokens (teacher forcing). prefix:
    text after the rendered messages that the answer continues; control tokens in it are not parsed.
    draft_max: most draft tokens of a round for this generation, None for the policy's own. turn: its index
    among the generations of its request; they take turns with those of other requests. owner: of the memory
    of earlier requests: drafts are made from texts of the same owner only. None: from no earlier text, and
    this one is not remembered.
    """

    id: int
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    ids: list[int] | None = None
    params: dict[str, Any] = field(default_factory=dict)
    speculate: bool = True
    variables: dict[str, Any] = field(default_factory=dict)
    follows: int | None = None
    forced: str | list[int] | None = None
    prefix: str = ""
    draft_max: int | None = None
    turn: int = 0
    owner: str | None = ""


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end this generation, its text so far stays."""

    id: int


@dataclass(frozen=True, slots=True)
class Calibrate:
    """To the engine, when idle: measure for at most `seconds` what is not known yet."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Configure:
    """To the engine, when idle: draft in another way from now on (LoadSettings' draft_max, draft_min,
    draft_p_min).
    """

    draft_max: int | None = None
    draft_min: int = 0
    draft_p_min: float = 0.0


@dataclass(frozen=True, slots=True)
class Configured:
    """From the engine: a Configure was carried out."""


@dataclass(frozen=True, slots=True)
class Tune:
    """To the engine, when it is idle and has no draft: measure everything now; see tuner.py. Cancel ends it.

    prompts: (workload, text) each, through the chat template unless raw. drafts: those to compare.
    n_tokens: most of a text, None for as many as there is time for.
    """

    id: int
    prompts: list[tuple[str, str]]
    drafts: list[ModelSettings] = field(default_factory=list)
    n_tokens: int | None = None
    raw: bool = False
    variables: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tuning:
    """From the engine: what a Tune is doing, the share of all that is done, seconds that are left."""

    id: int
    label: str
    share: float
    left: float


@dataclass(frozen=True, slots=True)
class TuneAgenda:
    """What a Tune is going to measure. seconds: predicted for all of it; t1: of a decode of one row.
    n_tokens: of a text at most. n_left_out: prompts for which there is no time; too_long: prompts that the
    context has no room for, name to reason. replays: whether the memory evaluates tokens again where a draft
    is not accepted as a whole.
    """

    seconds: float
    t1: float
    n_texts: int
    n_tokens: int
    n_left_out: int
    too_long: dict[str, str]
    replays: bool


@dataclass(frozen=True, slots=True)
class TimedWidth:
    """The typical seconds of `count` decodes of so many rows, or steps of a draft model of so many ids."""

    rows: int
    seconds: float
    count: int


@dataclass(frozen=True, slots=True)
class TimedCurve:
    """Decodes after a text of n_ids. left_out: rows that there was no time or room for. spread: of decodes of
    one row, see timing.py; None without any.
    """

    n_ids: int
    points: list[TimedWidth]
    left_out: list[int]
    complete: bool
    spread: float | None


@dataclass(frozen=True, slots=True)
class TimedThreads:
    """Median seconds of a decode of one row and of a wide one with this number of threads."""

    threads: int
    one: float
    wide: float


@dataclass(frozen=True, slots=True)
class ThreadsComparison:
    """used, used_batch: threads in use for one row and for more. rows: of the wide decode. fastest, gain: the
    best number and how many times as fast it is, None where too little was timed; clear: by more than chance.
    """

    used: int
    used_batch: int
    rows: int
    points: list[TimedThreads]
    fastest: int | None
    gain: float | None
    clear: bool


@dataclass(frozen=True, slots=True)
class RowsComparison:
    """Batched against single rows. value: epsilon in logits, None where it was not measured, for this reason.
    n_rows: compared, after texts of up to `reach` ids. equal_up_to: rows of a decode that were bit-equal;
    unequal_from: the fewest that were not.
    """

    value: float | None
    n_rows: int
    reach: int
    equal_up_to: int
    unequal_from: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class TextCount:
    """Texts that the target wrote for a workload, and their tokens."""

    texts: int
    tokens: int


@dataclass(frozen=True, slots=True)
class WrittenTexts:
    """The texts that drafts are judged by, by workload."""

    workloads: dict[str, TextCount]


@dataclass(frozen=True, slots=True)
class WorkloadPrediction:
    """speedup: over plain decoding. acceptance: share of the tokens that the draft model predicts, None
    without one. n_drafted, n_accept: of the replay.
    """

    speedup: float
    acceptance: float | None
    tokens: int
    n_drafted: int
    n_accept: int


@dataclass(frozen=True, slots=True)
class DraftPrediction:
    """The same over all workloads; None without texts."""

    speedup: float | None
    acceptance: float | None
    tokens: int
    n_drafted: int
    n_accept: int
    workloads: dict[str, WorkloadPrediction]


@dataclass(frozen=True, slots=True)
class MeasuredDraft:
    """A draft of Tune's, by its index; -1 for copying alone. problem: why it cannot be used. step: seconds
    for a token of the draft model, points: what its steps take. What is not measured is None or empty.
    """

    index: int
    problem: str = ""
    model: ModelInfo | None = None
    step: float | None = None
    points: list[TimedWidth] = field(default_factory=list)
    break_even: list[BreakEven] = field(default_factory=list)
    forecast: DraftPrediction | None = None


TunePart = TuneAgenda | TimedCurve | ThreadsComparison | RowsComparison | WrittenTexts | MeasuredDraft


@dataclass(frozen=True, slots=True)
class TuneMeasurement:
    """From the engine: a part of what a Tune has measured, again where there is more of it."""

    id: int
    found: TunePart


@dataclass(frozen=True, slots=True)
class Tuned:
    """From the engine: a Tune has ended, before its end if cancelled."""

    id: int
    seconds: float
    cancelled: bool


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
    compiled for, by backend.
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


@dataclass(frozen=True, slots=True)
class Inspect:
    """To the engine: say what this build of llama.cpp is and can use; no model is needed."""


@dataclass(frozen=True, slots=True)
class Serve:
    """To the engine: be an RPC worker from now on, and nothing else. address: IPv4:port. devices: names, none
    for all GPUs or else the CPU. n_threads: 0 for the physical cores. memory: bytes that clients see at most,
    0 for no limit. cache: a directory for what they send, "" for none.
    """

    address: str
    devices: list[str] = field(default_factory=list)
    n_threads: int = 0
    memory: int = 0
    cache: str = ""
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Serving:
    """From the engine: it listens. protocol: its version; cache: the directory for tensors, None for none."""

    endpoint: str
    protocol: str
    n_threads: int
    devices: tuple[DeviceInfo, ...]
    cache: str | None


@dataclass(frozen=True, slots=True)
class Tokenize:
    """To the engine: the ids of a text, each with its bytes."""

    id: int
    text: str
    add_special: bool = False
    parse_special: bool = True


@dataclass(frozen=True, slots=True)
class Detokenize:
    """To the engine: the text of ids, control tokens spelt out."""

    id: int
    ids: list[int]


@dataclass(frozen=True, slots=True)
class Render:
    """To the engine: messages through the chat template."""

    id: int
    messages: list[dict[str, Any]]
    variables: dict[str, Any] = field(default_factory=dict)
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class GetSlots:
    """To the engine: what its slots are doing."""

    id: int


@dataclass(frozen=True, slots=True)
class Tokenized:
    """From the engine: the ids of a text and the bytes of each."""

    id: int
    ids: list[int]
    pieces: list[list[int]]


@dataclass(frozen=True, slots=True)
class Detokenized:
    """From the engine: the text of ids."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """From the engine: the prompt that the chat template makes of messages."""

    id: int
    prompt: str


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot. n_past: tokens in its cache. id: of the generation that it works on, None where it is idle; the
    figures after it are those of the generation.
    """

    slot: int
    n_past: int
    id: int | None = None
    n_prompt: int = 0
    n_decoded: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    speculate: bool = True


@dataclass(frozen=True, slots=True)
class Slots:
    """From the engine: what its slots are doing. n_waiting: generations without one. n_used: tokens in the
    cache, of n_ctx.
    """

    id: int
    slots: list[SlotState]
    n_waiting: int
    n_used: int
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Loading:
    """From the engine: the share of a model's file that is loaded. model: "target" or "draft"."""

    model: str
    share: float


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A loaded model. params: its number of weights; quant: as llama.cpp names it, "Q4_K_M"."""

    path: str
    name: str
    params: int
    quant: str
    n_gpu_layers: int


@dataclass(frozen=True, slots=True)
class LoadInfo:
    """What was loaded.

    draft: None where no draft model is used; verdict: how its vocabulary relates to the target's. n_ctx,
    n_ctx_draft: tokens of all slots together. drafters: names as in LoadSettings; memory: whether earlier
    requests are drafted from. draft_max: as asked for, longest_draft: what fits at most. off_reason: why
    nothing drafts, "" where something does. n_ctx_train: tokens; file_bytes: of the target's file. end_ids:
    tokens that end a generation. sampling: defaults of the program and of the model's file. template: the
    source of the chat template, "" where there is none; template_works: whether it can be used. priced,
    forced: the drafters that are a model, and those of what a grammar forces.
    """

    target: ModelInfo
    draft: ModelInfo | None
    verdict: str | None
    n_ctx: int
    n_ctx_draft: int
    n_vocab: int
    n_threads: int
    drafters: tuple[str, ...]
    memory: bool
    draft_max: int | None
    longest_draft: int
    notes: tuple[Note, ...]
    off_reason: str
    load_seconds: float
    n_slots: int
    n_ctx_train: int
    file_bytes: int
    end_ids: tuple[int, ...]
    sampling: SamplingParams
    template: str
    template_works: bool
    bos_token: str
    eos_token: str
    priced: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()

    @property
    def speculation(self) -> str:
        """ "on" or "off", as programs read it."""
        return "off" if self.off_reason else "on"

    def spelled(self, spelling: Spelling) -> LoadInfo:
        """The same with options as a front spells them."""
        notes = tuple(note.spelled(spelling) for note in self.notes)
        return replace(self, notes=notes, off_reason=spelled(self.off_reason, spelling))

    def to_dict(self) -> dict[str, Any]:
        """As plain data with the keys that `LLM.info` has."""
        found = asdict(self)
        del found["priced"], found["forced"]
        renamed = {
            "most_drafted": found.pop("longest_draft"),
            "reason": found.pop("off_reason"),
            "chat_template": found.pop("template_works"),
        }
        return found | {
            **renamed,
            "drafters": list(self.drafters),
            "notes": [str(note) for note in self.notes],
            "speculation": self.speculation,
            "end_ids": list(self.end_ids),
        }


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: the models are loaded."""

    info: LoadInfo


@dataclass(frozen=True, slots=True)
class Started:
    """From the engine: a generation is queued. params: as used, the seed included. closing_tag: closes the
    reasoning that the prompt has opened, "" where it has not.
    """

    id: int
    n_prompt: int
    params: SamplingParams
    closing_tag: str = ""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """From the engine: tokens of the prompt evaluated so far."""

    id: int
    n_done: int
    n_prompt: int


class CandidateLogprob(NamedTuple):
    """A token with its natural-log probability, None where that is minus infinity, which JSON cannot express.
    token: its bytes as text, invalid ones replaced.
    """

    id: int
    token: str
    bytes: list[int]
    logprob: float | None

    def to_dict(self) -> dict[str, Any]:
        """As programs read it."""
        return self._asdict()


class PositionLogprobs(NamedTuple):
    """The token that was emitted at a position, and the likeliest ones there, best first."""

    chosen: CandidateLogprob
    top: list[CandidateLogprob]

    def to_dict(self) -> dict[str, Any]:
        """As `run --json` shows it."""
        return {**self.chosen.to_dict(), "top_logprobs": [c.to_dict() for c in self.top]}


class SequenceDelta(NamedTuple):
    """What a sequence went on by in a round.

    text: what is certain of it; it may come later than the ids. runs: (characters, source) of `text`, the
    source "target" or the name of the drafter whose token it was. drafted, accepted: draft tokens verified
    and emitted. logprobs: one for each id, None unless requested.
    """

    id: int
    text: str
    ids: list[int]
    runs: list[tuple[int, str]]
    drafted: int
    accepted: int
    logprobs: list[PositionLogprobs] | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """From the engine, once a round: what each sequence went on by."""

    items: list[SequenceDelta]


@dataclass(frozen=True, slots=True)
class Done:
    """From the engine: a generation ended.

    text: what was still held back, runs as in SequenceDelta. reason: "stop", "length", "context", "cancel".
    stop_string: the one that ended it, None where an end token or a limit did. queue_seconds: from the
    request to its slot, None where it never had one. off_reason: why nothing was drafted, "" where something
    was. stored_t1, epsilon: seconds of a decode of one row, and logits (engine.md), None where they are not
    measured. unmeasured: whether an idle engine could measure more.
    """

    id: int
    text: str
    reason: str
    stats: RunStats
    runs: list[tuple[int, str]] = field(default_factory=list)
    stop_string: str | None = None
    queue_seconds: float | None = None
    off_reason: str = ""
    stored_t1: float | None = None
    epsilon: float | None = None
    unmeasured: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """From the engine: a request (or, without id, the load) failed. error: SpecllamaError.to_dict()."""

    error: dict[str, Any]
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """From the engine: a line that the user should see."""

    text: str


@dataclass(frozen=True, slots=True)
class Calibrated:
    """From the engine: what is known after a Calibrate. t1, epsilon: as in Done. unmeasured: whether another
    one could measure more.
    """

    t1: float | None
    epsilon: float | None
    unmeasured: bool


@dataclass(frozen=True, slots=True)
class Inspected:
    """From the engine: the build of llama.cpp."""

    build: BuildInfo


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the engine, every half second: how long the step at hand has run and how long it may, in
    seconds.
    """

    busy_for: float
    allowed: float


Question = Tokenize | Detokenize | Render | GetSlots
Answer = Tokenized | Detokenized | Rendered | Slots
Message = (
    Load
    | Generate
    | Cancel
    | Calibrate
    | Configure
    | Tune
    | Tuning
    | TuneMeasurement
    | Tuned
    | Inspect
    | Serve
    | Serving
    | Question
    | Answer
    | Loading
    | Ready
    | Started
    | Prefilled
    | Tokens
    | Done
    | Failed
    | Notice
    | Calibrated
    | Configured
    | Inspected
    | Heartbeat
)
_KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line, without a newline inside. Raises TypeError, ValueError or RecursionError for a message that
    holds what is no JSON.
    """
    return wire.to_json([type(message).__name__, message]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`. Raises ValueError for anything else, unknown keys included."""
    try:
        kind, body = json.loads(line)
        message: Message = wire.from_plain(_KINDS[kind], body)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no message: {error}") from None
    return message


def request_id(line: bytes) -> int | None:
    """The id in a line that `decode` refuses, for whoever waits for an answer; None where there is none."""
    try:
        found = json.loads(line)[1]["id"]
    except (ValueError, LookupError, TypeError):
        return None
    return found if isinstance(found, int) else None
