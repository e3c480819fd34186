"""The messages between a front and its engine process, one JSON object a line. Knows neither end.
Descriptions of models are in model_info.py, messages that ask for no text in tune_messages.py.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from specllama import wire
from specllama.calls.tools import Tools
from specllama.client.model_info import LoadInfo
from specllama.client.tune_messages import EngineCommand, EngineProgress, EngineResult
from specllama.config.load import LoadSettings
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.json_types import JsonObject
from specllama.prefix_disk.scopes import LOCAL


@dataclass(frozen=True, slots=True)
class InfillChunk:
    """A text, or a part of one, that may help to fill a gap in another."""

    text: str
    filename: str = "tmp"


@dataclass(frozen=True, slots=True)
class Infill:
    """A text with a gap. prefix, suffix: what is before and after it. prompt: the beginning of what fills it.
    extra: other texts, the most important ones last; all texts but `prompt` are then cut to what fits. None
    for prefix and suffix alone, uncut. suffix_first: for models that were trained on that order.
    """

    prefix: str
    suffix: str
    prompt: str = ""
    extra: list[InfillChunk] | None = None
    suffix_first: bool = False


@dataclass(frozen=True, slots=True)
class EarlierTurn:
    """A generation of another engine process, whose ids are kept (Generate.show_ids).

    n_messages: that it answered. ids: of its prompt and its text, the prompt's first. digest: as in
    Started. prefix: the beginning of the answer that was part of its prompt (ChatInput.prefix).
    """

    n_messages: int
    n_prompt: int
    ids: list[int]
    digest: str
    prefix: str = ""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Image:
    """A decoded image. digest: SHA-256 of its scope, size and pixels, hexadecimal. path: a file with width *
    height * 3 bytes, red, green and blue of each pixel, row by row; it need not outlast the answer Started,
    Failed, QueriedText or TokenCount.
    """

    digest: str
    width: int
    height: int
    path: str

    @property
    def marker(self) -> str:
        """Stands for the image in a text."""
        return f"<__media_{self.digest[:32]}__>"


@dataclass(frozen=True, slots=True)
class ChatInput:
    """Messages, which the chat template renders.

    variables: of the template. tools: what the model may call in its answer, None for nothing. prefix: text
    after the rendered messages that the answer continues; control tokens in it are not parsed.
    prefix_thought: reasoning of the answer before `prefix`; without a prefix it goes on itself. follows: id
    of an earlier generation whose prompt and answer these messages begin with; its ids are kept where the
    template writes the same text for them. earlier: in place of `follows`, a generation of another engine
    process, of these messages or of the first of them. images: whose markers are in the messages.
    """

    messages: list[JsonObject]
    variables: JsonObject = field(default_factory=dict)
    tools: Tools | None = None
    prefix: str = ""
    prefix_thought: str = ""
    follows: int | None = None
    earlier: EarlierTurn | None = None
    images: list[Image] = field(default_factory=list)

    @property
    def is_begun(self) -> bool:
        """Whether the answer goes on with what is there of it."""
        return bool(self.prefix or self.prefix_thought)


@dataclass(frozen=True, slots=True)
class TextInput:
    """A text as it is; control tokens in it are parsed. images: whose markers it has."""

    text: str
    images: list[Image] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MixedInput:
    """Token ids, or texts and ids in turn; each text is tokenised on its own."""

    parts: list[str | list[int]]


PromptInput = ChatInput | TextInput | MixedInput | Infill


@dataclass(frozen=True, slots=True)
class Load:
    """To the engine: load these models. verbose: llama.cpp's log goes to stderr. measure_when_idle:
    after answers, while nobody asks, what is not known yet is measured (unless settings.calibrate is off).
    open_draft: False for Tune: the draft is checked and has its memory, but is not opened. may_embed: a model
    that makes vectors by its header is loaded as one, also where settings.pooling does not ask for it.
    yields: the process gives way to others that compute, such as the engine of a chat model. reserved: bytes
    of memory that another model will need.
    """

    settings: LoadSettings
    verbose: bool = False
    measure_when_idle: bool = False
    open_draft: bool = True
    may_embed: bool = False
    yields: bool = False
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A further answer to the prompt of a Generate, with another seed. id, turn: as in Generate."""

    id: int
    turn: int
    seed: int


@dataclass(frozen=True, slots=True)
class Generate:
    """To the engine: write what follows `prompt`: the answer to a chat, the rest of a text, what fills a gap.

    params: what the user set of SamplingParams, the model's own defaults fill in. speculate: False decodes
    plainly. forced: the text, or the ids, that is written whatever the model would write, to its end or to
    max_tokens (teacher forcing). draft_max: most draft tokens of a round for this generation, None for the
    policy's own. exact: as in LoadSettings, for this generation. turn: its index among the generations of its
    request; they take turns with those of other requests. owner: who asks, in words that are no secret.
    Nothing that was cached or kept for an owner is used for another one. memory: whether drafts are made from
    earlier texts of the owner, and later ones from this text. share_cache: reuse the caches of all owners
    that share theirs, and let them reuse this one's. reuse: False evaluates all of the prompt, and no request
    reuses what it caches. choices: more answers to the same prompt, which is rendered and tokenised once;
    each is a generation of its own. text_biases: added to the logits of all tokens of these texts.
    show_prompt: Done has the prompt's text. progress: all of the prefill is reported, and before it the place
    in the queue. show_rejected: deltas have the rejected draft tokens. final_probs: `logprobs` are of the
    distribution from which the token was chosen, in place of the model's own. n_indent: see TokenWriter.
    prompt_seconds, predict_seconds: time limits of the prompt, from its arrival, and of the text after the
    first token; None for none. warm: evaluate the prompt for later requests and write nothing; the limits do
    not apply. strict_schema: what cannot be enforced of params.json_schema is an error; otherwise it is left
    out, with a Notice. disk_scope: whose prompts on disk it may read, and whose its own becomes there
    (prefix_disk/scopes.py); "" for none, which keeps and reads nothing. kept: whether its prompt and text may
    be written to the disk. show_ids: Started has the ids of the prompt, for an EarlierTurn. end_loops: the
    text ends where it goes on repeating itself. prediction: a text that most of the answer is expected to be,
    to draft from, "" for none; control tokens in it are not parsed. reasoning_control:
    EndReasoning may follow.
    """

    id: int
    prompt: PromptInput
    params: JsonObject = field(default_factory=dict)
    speculate: bool = True
    forced: str | list[int] | None = None
    draft_max: int | None = None
    exact: bool = False
    turn: int = 0
    owner: str = ""
    memory: bool = True
    share_cache: bool = False
    reuse: bool = True
    choices: list[Choice] = field(default_factory=list)
    text_biases: dict[str, float] = field(default_factory=dict)
    show_prompt: bool = False
    progress: bool = False
    show_rejected: bool = False
    final_probs: bool = False
    n_indent: int = 0
    prompt_seconds: float | None = None
    predict_seconds: float | None = None
    warm: bool = False
    strict_schema: bool = False
    disk_scope: str = LOCAL
    kept: bool = True
    show_ids: bool = False
    end_loops: bool = False
    prediction: str = ""
    reasoning_control: bool = False

    @property
    def chat(self) -> ChatInput | None:
        return self.prompt if isinstance(self.prompt, ChatInput) else None


@dataclass(frozen=True, slots=True)
class Cancel:
    """To the engine: end this generation, its text so far stays."""

    id: int


@dataclass(frozen=True, slots=True)
class EndReasoning:
    """To the engine: write the end of this generation's reasoning now, or as soon as it begins. Without
    effect where it is over, or the request has neither reasoning_control nor a budget.
    """

    id: int


@dataclass(frozen=True, slots=True)
class Tokenize:
    """To the engine: the ids of a text. with_pieces: each with its bytes."""

    id: int
    text: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


@dataclass(frozen=True, slots=True)
class Detokenize:
    """To the engine: the text of ids, control tokens spelt out or, with skip_special, left out."""

    id: int
    ids: list[int]
    skip_special: bool = False


@dataclass(frozen=True, slots=True)
class Render:
    """To the engine: messages through the chat template."""

    id: int
    chat: ChatInput


@dataclass(frozen=True, slots=True)
class CountTokens:
    """To the engine: how many tokens the prompt of a chat has."""

    id: int
    chat: ChatInput


@dataclass(frozen=True, slots=True)
class Embed:
    """To the engine of an embedding model: the vectors of texts, or of their ids; with a query the scores
    that a reranker gives to texts as answers to it. texts: at least one. norm: what vectors are divided by,
    see normalised in llama/embedding.py. n_values: numbers of a vector, 0 for all of them; the others are
    removed before that. truncate: texts that are too long are cut; otherwise they fail. pooled: False if
    vectors of tokens are welcome, where the model makes these. as_text: numbers are written in decimal, with
    commas between them, as in JSON; otherwise as float32 in little-endian order, in base64.

    Answered by Embedded, texts in any order. Fails with UsageError for what the model does not do and for an
    empty text, ContextLengthError for a long one, EngineError for a vector with numbers that are not finite.
    """

    id: int
    texts: list[str | list[int]]
    query: str | None = None
    norm: int = 2
    n_values: int = 0
    truncate: bool = False
    pooled: bool = True
    as_text: bool = False


@dataclass(frozen=True, slots=True)
class GetSlots:
    """To the engine: what its slots are doing."""

    id: int


@dataclass(frozen=True, slots=True)
class SlotAction:
    """To the engine: once a slot is idle, save what it has in its cache to a file, restore what such a file
    holds in place of that, or erase it. path: of the file, as of prefix_disk/disk_store.py. owner,
    disk_scope: as in Generate; what another owner used last stays as it is, and counts as empty.

    Answered by SlotDone. Fails with UsageError for a slot that there is not, and for a file that cannot be
    used, after which the slot is empty; with EngineError for one that cannot be written.
    """

    id: int
    slot: int
    action: Literal["save", "restore", "erase"]
    path: str = ""
    owner: str = ""
    disk_scope: str = LOCAL


@dataclass(frozen=True, slots=True)
class SlotDone:
    """From the engine: a slot was saved, restored or erased. n_tokens: saved, restored or erased. n_bytes: of
    the file, 0 for none. more: always False.
    """

    id: int
    n_tokens: int
    n_bytes: int = 0
    seconds: float = 0.0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Tokenized:
    """From the engine: ids of a text. pieces: the bytes of each if requested, as Latin-1 characters. more:
    whether the next part of the answer follows; a long answer comes in parts of bounded size.
    """

    id: int
    ids: list[int]
    pieces: list[str] = field(default_factory=list)
    more: bool = False


@dataclass(frozen=True, slots=True)
class QueriedText:
    """From the engine: the text of ids, or the prompt made of messages. more: as in Tokenized."""

    id: int
    text: str
    more: bool = False


@dataclass(frozen=True, slots=True)
class TokenCount:
    """From the engine: tokens of a prompt. more: always False."""

    id: int
    n: int
    more: bool = False


class TextVectors(NamedTuple):
    """What was made of a text. text_index: in Embed.texts. n_tokens: that were computed. vectors: one, or one
    for each token, in the form that was asked for. A score is a vector of one number.
    """

    text_index: int
    n_tokens: int
    vectors: list[str]

    def numbers(self) -> list[list[float]]:
        """The numbers of each vector in base64."""
        return [list(struct.unpack(f"<{len(raw) // 4}f", raw)) for raw in map(b64decode, self.vectors)]


@dataclass(frozen=True, slots=True)
class Embedded:
    """From the engine: vectors or scores of some of the texts of an Embed. more: as in Tokenized."""

    id: int
    items: list[TextVectors]
    more: bool = False


@dataclass(frozen=True, slots=True)
class SlotState:
    """A slot. n_past: tokens in its cache. owner: whose they are (Generate). id: of the generation that it
    works on, None where it is idle; the figures after it are those of the generation.
    """

    slot: int
    n_past: int
    owner: str = ""
    id: int | None = None
    n_prompt: int = 0
    n_decoded: int = 0
    n_drafted: int = 0
    n_accept: int = 0
    speculate: bool = True


@dataclass(frozen=True, slots=True)
class Slots:
    """From the engine: what its slots are doing. n_waiting: generations without one. n_used: tokens in the
    cache, of n_ctx. decode_seconds: (rows, seconds of such a decode) as measured at the context length used
    last, by rows; empty where drafts have a fixed length. n_states, state_bytes: evaluated texts and partial
    states in memory outside of the context. more: always False.
    """

    id: int
    slots: list[SlotState]
    n_waiting: int
    n_used: int
    n_ctx: int
    decode_seconds: list[tuple[int, float]] = field(default_factory=list)
    n_states: int = 0
    state_bytes: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: the models are loaded."""

    info: LoadInfo


@dataclass(frozen=True, slots=True)
class Started:
    """From the engine: a generation is queued. params: as used, the seed included. closing_tag: closes the
    reasoning that the prompt has opened, "" where it has not. prompt_ids: of the prompt, where they were
    asked for; digest: of its text and of the bytes that its ids stand for.
    """

    id: int
    n_prompt: int
    params: SamplingParams
    closing_tag: str = ""
    prompt_ids: list[int] = field(default_factory=list)
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """From the engine: n_done tokens of the prompt are in the cache, n_reused of which were there before.
    at_image: whether an image follows, which is encoded first.
    """

    id: int
    n_done: int
    n_prompt: int
    n_reused: int = 0
    at_image: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """From the engine: a generation waits for a slot. queue_rank: 1 for the one that gets the next slot."""

    id: int
    n_prompt: int
    queue_rank: int


class CandidateLogprob(NamedTuple):
    """A token with its natural-log probability, None where that is minus infinity, which JSON cannot express.
    token: its bytes as text, invalid ones replaced.
    """

    id: int
    token: str
    bytes: list[int]
    logprob: float | None

    def to_dict(self) -> JsonObject:
        return {"id": self.id, "token": self.token, "bytes": self.bytes, "logprob": self.logprob}


class PositionLogprobs(NamedTuple):
    """The token that was emitted at a position, and the likeliest ones there, best first. length: characters
    of the text that the token completes; 0 for one that ends within a character, and for a control token.
    """

    chosen: CandidateLogprob
    top: list[CandidateLogprob]
    length: int = 0

    def to_dict(self) -> JsonObject:
        """As `run --json` shows it."""
        return {**self.chosen.to_dict(), "top_logprobs": [c.to_dict() for c in self.top]}


class SequenceDelta(NamedTuple):
    """New output of one sequence in one round.

    text: what is certain of it; it may come later than the ids. runs: (characters, source) of `text`, the
    source "target" or the name of the drafter whose token it was. drafted, accepted: draft tokens verified
    and emitted. logprobs: one for each id, None unless requested. rounds: decodes that this took: more than
    one where a near-tie was decided again, 0 where the token is the one that the prompt's decode gave.
    seconds: of these rounds. rejected: the first draft tokens from the one that was wrong, as (text,
    drafter), at most MAX_REJECTED of worker/intake.py; empty unless requested.
    """

    id: int
    text: str
    ids: list[int]
    runs: list[tuple[int, str]]
    drafted: int
    accepted: int
    logprobs: list[PositionLogprobs] | None = None
    rounds: int = 1
    seconds: float = 0.0
    rejected: list[tuple[str, str]] = []  # noqa: RUF012 (a NamedTuple's default, never changed)


@dataclass(frozen=True, slots=True)
class Tokens:
    """From the engine, once a round: the new output of each sequence."""

    items: list[SequenceDelta]


@dataclass(frozen=True, slots=True)
class Done:
    """From the engine: a generation ended.

    text: what was still held back, runs as in SequenceDelta. reason: "stop", "length", "context", "loop",
    "cancel". stop_string: the one that ended it, None where an end token or a limit did. queue_seconds: from
    the request to its slot, None where it never had one. off_reason: why nothing was drafted, "" where
    something was. stored_t1, epsilon: seconds of a decode of one row, and the difference of two logits that
    rounding can turn around, None where they are not measured. pace: how many times stored_t1 a decode takes
    now, by the rounds of this run, None: unknown. unmeasured: whether an idle engine could measure more.
    slot: the one that it had, -1 for none. prompt: its text, control tokens spelt out, if that was asked for.
    complete: False where its grammar asks for more.
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
    pace: float | None = None
    epsilon: float | None = None
    unmeasured: bool = False
    slot: int = -1
    prompt: str = ""
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """From the engine: a request (or, without id, the load) failed. error: SpecllamaError.to_dict()."""

    error: JsonObject
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """From the engine: a line that the user should see."""

    text: str


Question = Tokenize | Detokenize | Render | CountTokens | Embed | GetSlots | SlotAction
Answer = Tokenized | QueriedText | TokenCount | Embedded | Slots | SlotDone
ToGeneration = Generate | Cancel | EndReasoning
Command = Load | ToGeneration | EngineCommand | Question
Progress = Started | Queued | Prefilled | Tokens | Notice | EngineProgress
Result = Ready | Done | Failed | EngineResult | Answer
Message = Command | Progress | Result
Send = Callable[[Message], None]
_KINDS: Mapping[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """One line. Raises TypeError, ValueError or RecursionError for a message that holds what is no JSON."""
    return wire.to_json([type(message).__name__, message]).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The inverse of `encode`. Raises ValueError for anything else, unknown keys included."""
    try:
        kind, body = json.loads(line)
        message: Message = wire.from_plain(_KINDS[kind], body)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"no message: {error}"[:300]) from None
    return message


def request_id(line: bytes) -> int | None:
    """The id in a line that `decode` refuses, for whoever waits for an answer; None where there is none."""
    try:
        id_ = json.loads(line)[1]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return id_ if isinstance(id_, int) else None
