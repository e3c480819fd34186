"""The messages of `tune`, `trim` and `rpc-worker`, and those about an engine as a whole: requests, parts of
the results, and progress.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specllama.client.model_info import BuildInfo, DeviceInfo, ModelInfo
from specllama.config.load import ModelSettings
from specllama.core.replay.break_even import BreakEven
from specllama.json_types import JsonObject


@dataclass(frozen=True, slots=True)
class Tune:
    """To the engine, when it is idle and has opened no draft: measure all now; see tuner.py. Cancel ends it.

    prompts: (workload, text) each, through the chat template unless raw. drafts: those to compare; the
    target's own file stands for the head inside it. n_tokens: most of a text, None for as many as there is
    time for. ignore_load: whether figures count as undisturbed whatever else runs.
    """

    id: int
    prompts: list[tuple[str, str]]
    drafts: list[ModelSettings] = field(default_factory=list)
    n_tokens: int | None = None
    raw: bool = False
    variables: JsonObject = field(default_factory=dict)
    ignore_load: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """From the engine: the stage of a Tune in progress, and the share of all stages that is done."""

    id: int
    label: str
    share: float


@dataclass(frozen=True, slots=True)
class TuneAgenda:
    """The texts that a Tune is going to use. n_tokens: of a text at most. n_left_out: prompts for which there
    is no time; too_long: prompts that the context has no room for, name to reason. replays: whether the
    memory evaluates tokens again where a draft is not accepted as a whole.
    """

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
    """Decodes after a text of n_ids. left_out: rows without time or room. spread: of decodes of one row, see
    timing.py; None without any. disturbed: whether other programs changed the times, which are not stored.
    """

    n_ids: int
    points: list[TimedWidth]
    left_out: list[int]
    complete: bool
    spread: float | None
    disturbed: bool = False


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
    disturbed: whether other programs changed the times.
    """

    used: int
    used_batch: int
    rows: int
    points: list[TimedThreads]
    fastest: int | None
    gain: float | None
    clear: bool
    disturbed: bool = False


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
    """A draft of Tune's, by its index; -1 for copying alone. problem: why it cannot be used. head: kind and
    size of a head, "" for a draft model. step: seconds for a token of the draft, points: what its steps take.
    translated: whether its tokens are. What is not measured is None or empty.
    """

    index: int
    problem: str = ""
    model: ModelInfo | None = None
    head: str = ""
    step: float | None = None
    points: list[TimedWidth] = field(default_factory=list)
    break_even: list[BreakEven] = field(default_factory=list)
    forecast: DraftPrediction | None = None
    translated: bool = False


TunePart = TuneAgenda | TimedCurve | ThreadsComparison | RowsComparison | WrittenTexts | MeasuredDraft


@dataclass(frozen=True, slots=True)
class TuneMeasurement:
    """From the engine: a part of what a Tune has measured, again where there is more of it."""

    id: int
    part: TunePart


@dataclass(frozen=True, slots=True)
class Tuned:
    """From the engine: a Tune has ended, before its end if cancelled."""

    id: int
    seconds: float
    cancelled: bool


# The messages of `trim`: the file to write, the progress, and the result.


@dataclass(frozen=True, slots=True)
class Trim:
    """To the engine, which needs no model: write a trimmed copy of a draft; see worker/trim.py.

    source: a draft model or a head. out: the file, which has the name `temporary` until it is whole. inside:
    the head inside a model. keep: tokens, None for the usual. texts: (name, text), whose tokens are kept
    first. seen: how often each id is in the texts of earlier prompts. type: of the output matrix, "" for that
    of the source. verify: compare what the file computes with its source. n_threads: 0 for the physical
    cores.
    """

    source: str
    out: str
    temporary: str
    inside: bool = False
    keep: int | None = None
    texts: list[tuple[str, str]] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    type: str = ""
    verify: bool = True
    n_threads: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """From the engine: the file is written and verified.

    n_kept, n_vocab: tokens of the copy, and of the source's vocabulary. coverage: share of the tokens of the
    texts that are kept, None without texts. source_bytes, n_bytes: of the files. source_step_bytes,
    step_bytes: of the weights that a step reads, of source and copy. verified: rows of logits that are the
    source's, bit for bit unless the output has another type. difference: the greatest one of logits, None
    where rows were not compared. exact_context: whether tokens that it lacks are read as by its source.
    """

    n_kept: int
    n_vocab: int
    coverage: float | None
    source_bytes: int
    n_bytes: int
    source_step_bytes: int
    step_bytes: int
    verified: int
    difference: float | None
    exact_context: bool


# Messages about an engine as a whole, and those of `rpc-worker`.


@dataclass(frozen=True, slots=True)
class Calibrate:
    """To the engine, when idle: measure for at most `seconds` what is not known yet."""

    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Calibrated:
    """From the engine: what is known after a Calibrate. t1, epsilon: as in protocol.Done. unmeasured: whether
    another one could measure more.
    """

    t1: float | None
    epsilon: float | None
    unmeasured: bool


@dataclass(frozen=True, slots=True)
class Configure:
    """To the engine, when idle: draft in another way from now on (LoadSettings' draft_max, draft_min,
    draft_p_min). runs_models: False leaves draft models and heads out.
    """

    draft_max: int | None = None
    draft_min: int = 0
    draft_p_min: float = 0.0
    runs_models: bool = True


@dataclass(frozen=True, slots=True)
class Configured:
    """From the engine: a Configure was carried out."""


@dataclass(frozen=True, slots=True)
class Inspect:
    """To the engine: say what this build of llama.cpp is and can use; no model is needed."""


@dataclass(frozen=True, slots=True)
class Inspected:
    """From the engine: the build of llama.cpp."""

    build: BuildInfo


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
class Loading:
    """From the engine: the share of a model's file that is loaded. model: "target", "draft", or "kernels" or
    "vision encoder" while these are compiled, and "source of llama.cpp" while that is downloaded for the
    latter, each of which happens once; for Trim what is being done.
    """

    model: str
    share: float


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """From the engine, every half second: seconds that the step at hand has run, and that it may."""

    busy_for: float
    allowed: float


EngineCommand = Calibrate | Configure | Tune | Inspect | Serve | Trim
EngineProgress = Loading | Tuning | TuneMeasurement | Heartbeat
EngineResult = Tuned | Trimmed | Calibrated | Configured | Inspected | Serving
