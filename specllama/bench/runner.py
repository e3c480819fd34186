"""Sends the requests of a bench to a loaded engine, one by one, and yields the samples; and their prompts and
texts: the built-in workloads, `--prompts` and `--text` files. Prints nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, NamedTuple, TypeVar

from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.stream import GenerationResult, fold
from specllama.config.text_file import read_text
from specllama.core.stats import RunStats
from specllama.errors import ContextLengthError, UsageError
from specllama.json_types import JsonObject, why_not_json
from specllama.regular_file import table_of

PLAIN, AUTO = "plain", "auto"
COPY = "copy"  # auto without draft models and heads
LLAMA_CPP = "llama.cpp"  # plain decoding with llama.cpp's own kernels
BLOCK = 4  # prompts that a configuration answers in a row
MIN_ROUNDS = 4  # of a width in an answer, for a time


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """draft_max: a draft length, as in LoadSettings: 0 plain decoding, None auto, else a fixed length.
    kernels: False without specllama's kernels. runs_models: False without draft models and heads.
    """

    draft_max: int | None
    kernels: bool = True
    runs_models: bool = True

    @property
    def name(self) -> str:
        if not self.kernels:
            return LLAMA_CPP
        if self.draft_max is None:
            return AUTO if self.runs_models else COPY
        return str(self.draft_max) if self.draft_max else PLAIN


class ForcedText(NamedTuple):
    """A prompt and the text that is written after it whatever the model would write.

    raw: the prompt goes in without the chat template.
    """

    prompt: str
    text: str
    raw: bool = False


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A prompt at a temperature. number: of the prompt in its workload, from 1. forced: the text that is
    written; None where the model writes its own.
    """

    workload: str
    number: int
    prompt: str = field(repr=False)
    temperature: float
    forced: ForcedText | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class BenchStep:
    """One answer to measure. run: from 1; answers of the same case and run share a seed."""

    run: int
    case: BenchCase
    config: BenchConfig


@dataclass(frozen=True, slots=True)
class BenchSample:
    """One measured answer. tokens: its ids. ties_known: whether the engine counts near-ties."""

    step: BenchStep
    tokens: tuple[int, ...]
    stats: RunStats
    ties_known: bool = False

    @property
    def config(self) -> str:
        return self.step.config.name

    @property
    def place(self) -> JsonObject:
        """Which answer it is, as objects of --json say it."""
        case = self.step.case
        return {
            "workload": case.workload,
            "prompt": case.number,
            "temperature": case.temperature,
            "run": self.step.run,
            "configuration": self.config,
        }


def configs(
    lengths: Iterable[int], speculation: bool = True, without_kernels: bool = False, copies: bool = False
) -> list[BenchConfig]:
    """Plain decoding, each fixed length, auto; plain decoding alone if nothing can be drafted.

    without_kernels: plain decoding with llama.cpp's kernels too. copies: auto without models and heads too.
    """
    own = [BenchConfig(0, kernels=False)] if without_kernels else []
    alone = [BenchConfig(None, runs_models=False)] if copies else []
    if not speculation:
        return [BenchConfig(0), *own]
    return [BenchConfig(0), *own, *(BenchConfig(k) for k in sorted(set(lengths))), *alone, BenchConfig(None)]


def row_times(samples: Iterable[BenchSample]) -> dict[int, list[float]]:
    """Rows of a decode, with specllama's kernels, to its mean seconds in each answer that had several."""
    times: dict[int, list[float]] = {}
    for sample in samples:
        for rows, (count, seconds) in (
            sample.stats.steady_by_rows.items() if sample.config != LLAMA_CPP else ()
        ):
            if count >= MIN_ROUNDS:
                times.setdefault(rows, []).append(seconds / count)
    return times


def order(
    cases: Sequence[BenchCase], configs: Sequence[BenchConfig], runs: int, seed: int = 0
) -> Iterator[BenchStep]:
    """Every case under every configuration, `runs` times, shuffled by the seed.

    All configurations answer a few cases, of different workloads if there are several, in random order before
    the next cases follow. Thus compared answers are measured close together and drift of the machine affects
    them alike, no prompt directly follows itself (its cache would still be there), and an interrupted bench
    covers all workloads.
    """
    rng = random.Random(seed)
    for run in range(1, runs + 1):
        temperatures = list(dict.fromkeys(case.temperature for case in cases))
        rng.shuffle(temperatures)
        for turn in zip_longest(*(_blocks(cases, t, rng) for t in temperatures), fillvalue=[]):
            for block in turn:
                for config in rng.sample(configs, len(configs)):
                    yield from (BenchStep(run, case, config) for case in block)


def _blocks(cases: Sequence[BenchCase], temperature: float, rng: random.Random) -> list[list[BenchCase]]:
    """The cases of a temperature in blocks of different prompts, one of each workload in turn."""
    workloads: dict[str, list[BenchCase]] = {}
    for case in cases:
        if case.temperature == temperature:
            workloads.setdefault(case.workload, []).append(case)
    shuffled = [rng.sample(prompts, len(prompts)) for prompts in workloads.values()]
    rng.shuffle(shuffled)
    mixed = [case for turn in zip_longest(*shuffled) for case in turn if case is not None]
    blocks = [mixed[i : i + BLOCK] for i in range(0, len(mixed), BLOCK)]
    if len(blocks) > 1 and len(blocks[-1]) == 1:
        single = blocks.pop()
        blocks[-1] += single
    return blocks


_FILLER = "Hello"  # prompt between two equal prompts, so that the second is not in the prompt cache


@dataclass(slots=True)
class BenchRunner:
    """A loaded engine with one slot, and another one without specllama's kernels where that is measured too.

    params: sampling parameters that all answers share; variables: of the chat template; raw: prompts go in
    without the chat template; skipped: cases whose prompt does not fit the context, and why.
    """

    client: EngineClient
    params: Mapping[str, Any]
    variables: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    skipped: dict[BenchCase, str] = field(default_factory=dict)
    without_kernels: EngineClient | None = None
    _config: BenchConfig | None = None
    _last_prompt: dict[bool, str] = field(default_factory=dict)  # of each engine

    def warm_up(self, configs: Sequence[BenchConfig], cases: Iterable[BenchCase]) -> Iterator[BenchConfig]:
        """Generates one unmeasured answer under each configuration and yields the configuration after it.

        Raises ContextLengthError if no prompt fits.
        """
        fitting = iter(cases)
        case = next(fitting)
        for config in configs:
            while self.answer(BenchStep(0, case, config)) is None:
                following = next(fitting, None)
                if following is None:
                    part = " or a shorter text, or -n for a part of it" if case.forced else ""
                    message = f"no prompt fits the context: {self.skipped[case]}"
                    raise ContextLengthError(message, f"use a larger -c{part}")
                case = following
            yield config

    def answer(self, step: BenchStep) -> BenchSample | None:
        """The answer of a step; None if its prompt does not fit the context."""
        if step.case in self.skipped:
            return None
        client = self.client if step.config.kernels else self.without_kernels
        assert client is not None
        if step.config != self._config:
            client.configure(step.config.draft_max, runs_models=step.config.runs_models)
            self._config = step.config
        if self._last_prompt.get(step.config.kernels) == step.case.prompt:
            self._generate(client, _FILLER, {"max_tokens": 1, "temperature": 0}, None)
        self._last_prompt[step.config.kernels] = step.case.prompt
        params = {**self.params, "temperature": step.case.temperature, "seed": step.run}
        try:
            answer = self._generate(client, step.case.prompt, params, step.case.forced)
        except ContextLengthError as error:
            self.skipped[step.case] = error.message
            return None
        return BenchSample(step, tuple(answer.ids), answer.stats, answer.epsilon is not None)

    def _generate(
        self, client: EngineClient, prompt: str, params: JsonObject, text: ForcedText | None
    ) -> GenerationResult:
        id_ = client.next_id()
        forced = text.text if text else None
        if self.raw or (text and text.raw):
            given: protocol.PromptInput = protocol.TextInput(prompt)
        else:
            given = protocol.ChatInput([{"role": "user", "content": prompt}], dict(self.variables))
        return fold(client.generate(protocol.Generate(id_, given, params, forced=forced)))


MAX_PROMPTS = 10_000
MAX_CHARACTERS = 1 << 20  # of one prompt
MAX_BYTES = 64 << 20  # of a file
MAX_NAME = 40  # characters
TOTAL = "all"  # names the row over all workloads, so no workload may have this name
TEXT = "text"  # the workload of a plain --text file
PROMPT_SHARE = 4  # the prompt is about a quarter of a plain text

_PROMPTS_SHAPE = 'it has to be an object of lists of texts: {"chat": ["Who was Ada Lovelace?", ...], ...}'
_TEXTS_SHAPE = (
    'it has to be an object of lists: {"edit": [{"prompt": "Rename ...", "text": "def ..."}, ...], ...}'
)
_Tasks = TypeVar("_Tasks")

WORKLOADS: Mapping[str, tuple[str, ...]] = {
    name: tuple(prompts) for name, prompts in table_of(__file__, "workloads.toml").items()
}


def load_prompts(path: str | None) -> Mapping[str, tuple[str, ...]]:
    """The workloads of a `--prompts` file: a JSON object, name → list of prompts; the built-in ones for None.

    Raises NotFoundError if there is no such file, UsageError if its content is wrong.
    """
    if path is None:
        return WORKLOADS
    where = f"--prompts: {path}"
    data = _parse_json(read_text(path, "prompts", MAX_BYTES), where, _PROMPTS_SHAPE)
    checked = _check_workloads(data, where, _PROMPTS_SHAPE, "prompt", _text_problem)
    return {name: tuple(prompts) for name, prompts in checked.items()}


def load_texts(path: str) -> dict[str, tuple[ForcedText, ...]]:
    """The workloads of a `--text` file, whose texts are written whatever the model would write.

    A *.json file is an object, name → list of {"prompt", "text"}, with prompts as in a chat. Any other file
    is one text: its beginning is the prompt, the rest is written. Raises NotFoundError if there is no such
    file, UsageError if its content is wrong.
    """
    where, text = f"--text: {path}", read_text(path, "text", MAX_BYTES)
    if not path.lower().endswith(".json"):
        if "\0" in text:
            raise UsageError(f"{where} is not a text, it holds NUL bytes")
        if wrong := _text_problem(text):
            raise UsageError(f"{where} {wrong}")
        prompt, rest = split_text(text)
        if not rest.strip():
            raise UsageError(f"{where} is too short to be split into a prompt and its continuation")
        return {TEXT: (ForcedText(prompt, rest, raw=True),)}
    data = _parse_json(text, where, _TEXTS_SHAPE)
    entries_of = _check_workloads(data, where, _TEXTS_SHAPE, "entry", _entry_problem)
    return {
        name: tuple(ForcedText(e["prompt"], e["text"]) for e in entries)
        for name, entries in entries_of.items()
    }


def split_text(text: str) -> tuple[str, str]:
    """A prompt and its continuation: split at the first line end after a quarter of the text, else before a
    word, else anywhere. The prompt is never empty and at most half of a text of two characters or more.
    """
    least = max(1, len(text) // PROMPT_SHARE)
    most = max(least, len(text) // 2)
    at = text.find("\n", least - 1, most) + 1 or text.find(" ", least, most)
    at = at if at > 0 else least
    return text[:at], text[at:]


def select(workloads: Mapping[str, _Tasks], names: str | None) -> dict[str, _Tasks]:
    """The workloads in a comma-separated list, in its order; all of them for None. Raises UsageError."""
    if names is None:
        return dict(workloads)
    selected = [name.strip() for name in names.split(",") if name.strip()]
    if not selected:
        raise UsageError("--workloads names none", f"there are: {', '.join(workloads)}")
    for name in selected:
        if name not in workloads:
            raise UsageError(f"--workloads: no workload {name!r}", f"there are: {', '.join(workloads)}")
    return {name: workloads[name] for name in selected}


def cases(
    workloads: Mapping[str, tuple[str | ForcedText, ...]], temperatures: Iterable[float]
) -> list[BenchCase]:
    """Every prompt at every temperature."""
    return [
        BenchCase(name, i, task, t) if isinstance(task, str) else BenchCase(name, i, task.prompt, t, task)
        for t in temperatures
        for name, tasks in workloads.items()
        for i, task in enumerate(tasks, 1)
    ]


def _parse_json(text: str, where: str, shape: str) -> Any:
    """Raises UsageError with a message that starts with `where` and `shape` as its hint."""
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {why_not_json(error)}", shape) from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice")
    return unique


def _check_workloads(
    data: Any, where: str, shape: str, noun: str, problem: Callable[[Any], str]
) -> dict[str, list[Any]]:
    """A JSON object of non-empty lists under names that a workload may have.

    noun: what an item is called in messages; problem: what is wrong with an item, "" for nothing. Raises
    UsageError with a message that starts with `where` and `shape` as its hint.
    """
    if not isinstance(data, dict) or not data:
        raise UsageError(
            f"{where} has no workloads" if data == {} else f"{where} is not a JSON object", shape
        )
    for name, items in data.items():
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME or name == TOTAL:
            message = f"{where}: {name[:MAX_NAME]!r} cannot name a workload"
            raise UsageError(message, f"1 to {MAX_NAME} printable characters, not {TOTAL!r}")
        if not isinstance(items, list) or not items:
            raise UsageError(f"{where}: {name} has to be a list with at least one {noun}", shape)
        for i, item in enumerate(items, 1):
            if wrong := problem(item):
                raise UsageError(f"{where}: {noun} {i} of {name} {wrong}", shape)
    n = sum(map(len, data.values()))
    if n > MAX_PROMPTS:
        raise UsageError(f"{where} has {n} {noun}s, {MAX_PROMPTS} are allowed")
    return dict(data)


def _text_problem(text: Any) -> str:
    """Why this cannot be a prompt or a text to write; "" if it can."""
    if not isinstance(text, str):
        return f"is not a text but {json.dumps(text)[:40]}"
    if not text.strip():
        return "is empty"
    if len(text) > MAX_CHARACTERS:
        return f"has {len(text)} characters, {MAX_CHARACTERS} are allowed"
    if any("\ud800" <= c <= "\udfff" for c in text):
        return "has half a character (a lone surrogate)"
    return ""


def _entry_problem(entry: Any) -> str:
    if not isinstance(entry, dict):
        return f"is not an object but {json.dumps(entry)[:40]}"
    if entry.keys() != {"prompt", "text"}:
        return f"has to have 'prompt' and 'text', not {', '.join(map(repr, entry)) or 'nothing'}"[:200]
    for name in ("prompt", "text"):
        if wrong := _text_problem(entry[name]):
            return f"has a {name} that {wrong}"
    return ""
