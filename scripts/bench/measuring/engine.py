"""An engine process that writes given texts, plainly and with the default policy in turn."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.stream import fold
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.stats import RunStats
from specllama.llama.model import LlamaModel


class Vocab:
    """The vocabulary of a model, without its weights."""

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(ModelSettings(path=str(path)), vocab_only=True)

    def prompt(self, text: str) -> list[int]:
        """Ids of a prompt; control tokens are parsed."""
        return self._model.tokenize(text, self._model.adds_bos, True)

    def ids(self, text: str) -> list[int]:
        """Ids of a continuation; control tokens are plain text."""
        return self._model.tokenize(text, False, False)

    def words(self) -> list[int]:
        """All ids that have a text."""
        return [i for i in range(self._model.n_vocab) if self._model.piece(i)]

    def close(self) -> None:
        self._model.close()


@dataclass(frozen=True)
class Task:
    """A prompt, and the text to write after it, both as ids; without a text the model writes n ids of its
    own. A prompt that is a string is the message of a chat. ignore_eos: write n ids even if the answer ends.
    """

    name: str
    prompt: Sequence[int] | str
    text: Sequence[int] | None = None
    n: int = -1
    ignore_eos: bool = True


class PlainAndAuto(NamedTuple):
    """Statistics of a task, decoded plainly and with the default policy."""

    plain: RunStats
    auto: RunStats


class TimedEngine:
    """A loaded pair in an engine process; a context manager.

    draft: None for the copy drafter alone; copies: whether the copy drafter is used with the draft model. The
    cache directory is empty: nothing is known from earlier processes.
    """

    def __init__(
        self, target: Path, draft: Path | None, n_threads: int, n_ctx: int, copies: bool = True
    ) -> None:
        self._stack = ExitStack()
        self._auto: bool | None = None
        os.environ["SPECLLAMA_CACHE"] = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._client = self._stack.enter_context(EngineClient())
        main, small = (
            ModelSettings(path=str(path), n_ctx=n_ctx, n_threads=n_threads) for path in (target, draft)
        )
        drafters = (*(["model"] if draft else []), *(["copy"] if copies else []))
        # texts are repeated: request history must be off
        draft_settings = small if draft else None
        self._client.load(LoadSettings(target=main, draft=draft_settings, drafters=drafters, memory=False))

    def __enter__(self) -> TimedEngine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._stack.close()

    def write(self, task: Task, auto: bool) -> tuple[list[int], RunStats]:
        """The ids of the answer, and its statistics."""
        if auto != self._auto:
            self._client.configure(None if auto else 0)
            self._auto = auto
        prompt: protocol.PromptInput
        if isinstance(task.prompt, str):
            prompt = protocol.ChatInput([{"role": "user", "content": task.prompt}])
        else:
            prompt = protocol.TokenInput(list(task.prompt))
        request = protocol.Generate(
            self._client.next_id(),
            prompt,
            params={"temperature": 0, "max_tokens": task.n, "ignore_eos": task.ignore_eos},
            forced=None if task.text is None else list(task.text),
        )
        result = fold(self._client.generate(request))
        return result.ids, result.stats

    def both(self, task: Task, rng: random.Random) -> PlainAndAuto:
        """The task decoded both ways, in random order."""
        ways = rng.sample((False, True), 2)
        found = {auto: self.write(task, auto)[1] for auto in ways}
        return PlainAndAuto(found[False], found[True])


def turns(tasks: Sequence[Task], runs: int, rng: random.Random) -> Iterator[tuple[int, Task]]:
    """(run, task) for every task in every run, in random order within a run."""
    for run in range(runs):
        for task in rng.sample(tasks, len(tasks)):
            yield run, task
