"""The engine process of one LLM: started once, ended once; and the tokenizer of its target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from specllama.api.images import written
from specllama.api.prompts import Message, conversation, token_ids
from specllama.calls import history
from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.config.load import LoadSettings
from specllama.config.options import as_argument
from specllama.errors import EngineError, SpecllamaError, UsageError, with_option_names
from specllama.images import MEDIA_MARKER
from specllama.models import prepare
from specllama.models.progress import DownloadState, Listener
from specllama.models.projectors import no_projector
from specllama.models.resolve import Library
from specllama.text.prompt_parts import template_variables

Progress = Callable[[str, float], None]
_log = logging.getLogger("specllama")


class EngineSession:
    """Finds models on disk at construction; `load` downloads the others. Any thread may call `load`, and
    close at any time. Notes for the user go to the logger "specllama".

    settings: models may be names. info: what the engine has loaded; empty before that. Raises UsageError,
    NotFoundError, ConfigError.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, progress: Progress | None) -> None:
        try:
            on_disk = prepare.prepare_if_on_disk(Library(_Logged(None)), settings)
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        self.info: Mapping[str, Any] = {}
        self._loaded: LoadInfo | None = None
        self.settings, self._complete = on_disk or settings, on_disk is not None
        self._engine_log, self._progress = log, progress
        self._client: EngineClient | None = None
        self._closed = False

    def load(self) -> None:
        """Download models that are not on disk, start the process and load them; end it again if that fails.

        Raises what prepare.prepare and EngineClient.load raise.
        """
        if not self._complete:
            self._download()
        client = self._client = EngineClient(self._engine_log, _log.warning, option_names=as_argument)
        try:
            self.client()  # it may have been closed meanwhile
            info = client.load(
                self.settings,
                self._progress,
                self._engine_log is not None,
                measure_when_idle=True,
                may_embed=True,
            )
        except SpecllamaError as error:
            client.close()
            raise error.with_option_names(as_argument) from None
        except BaseException:
            client.close()
            raise
        self._loaded = info
        self.info = info.to_dict()
        for note in info.notes:
            _log.log(logging.WARNING if note.severity == "warning" else logging.INFO, "%s", note.message)

    def answer_reader(self, tools: Tools | None) -> CallReader | None:
        """See LoadInfo.answer_reader; of the loaded model."""
        assert self._loaded is not None
        return self._loaded.answer_reader(tools)

    def image_problem(self) -> SpecllamaError | None:
        """The error for images where the loaded model reads text only."""
        assert self._loaded is not None
        if self._loaded.vision:
            return None
        return no_projector(Library(_Logged(None)), self._loaded.target.path).with_option_names(as_argument)

    def client(self) -> EngineClient:
        """The client of the running process, for a call. Raises EngineError after a close."""
        if self._closed or self._client is None:
            raise EngineError("this LLM is closed", "make a new one")
        return self._client

    def _download(self) -> None:
        library = Library(_Logged(self._progress))
        try:
            self.settings = prepare.prepare(library, self.settings)
        except SpecllamaError as error:
            raise error.with_option_names(as_argument) from None
        self._complete = True

    def shut(self) -> None:
        """End the process without waiting for it; for finalizers."""
        self._closed = True
        if self._client is not None:
            self._client.shut()

    def close(self) -> None:
        """End the process; a second call does nothing."""
        self._closed = True
        if self._client is not None:
            self._client.close()


class _Logged(Listener):
    """Notes go to the logger "specllama", shares to `progress`."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def note(self, text: str) -> None:
        _log.info("%s", with_option_names(text, as_argument))

    def warning(self, text: str) -> None:
        _log.warning("%s", with_option_names(text, as_argument))

    def state(self, state: DownloadState) -> None:
        if self._progress is not None:
            self._progress("download", state.done / state.total if state.total else 1.0)


# The tokenizer.


class Tokenizer:
    """From texts to token ids and back. Its methods wait for the engine; threads may share one.

    bos_token, eos_token: their texts, "" where the vocabulary has none. end_ids: all tokens that end a text.
    """

    def __init__(self, engine: EngineSession) -> None:
        self._engine, info = engine, engine.info
        self.vocab_size: int = info["n_vocab"]
        self.bos_token: str = info["bos_token"]
        self.eos_token: str = info["eos_token"]
        self.end_ids: Sequence[int] = tuple(info["end_ids"])

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id(self.eos_token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text; control tokens that it names are parsed. add_special_tokens: with the beginning
        of a text, where the model has one. Raises UsageError.
        """
        if not isinstance(text, str):
            raise UsageError(f"encode takes a text, not {type(text).__name__}")
        parts = self._ask(protocol.Tokenize(-1, text, add_special_tokens))
        return [i for part in parts for i in part.ids]

    def decode(self, ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of ids. Raises UsageError."""
        ids = token_ids([ids] if isinstance(ids, int) else ids) if isinstance(ids, int) or len(ids) else ()
        parts = self._ask(protocol.Detokenize(-1, list(ids), skip_special_tokens))
        return "".join(part.text for part in parts)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Messages and the beginning of their answer, through the chat template: ids, or a text with
        tokenize=False. variables: of the template. Raises UsageError and TemplateError.
        """
        if not add_generation_prompt:
            raise UsageError("messages end with the beginning of an answer", "add add_generation_prompt=True")
        source = conversation(messages)
        given = written(source.messages or [], dict.fromkeys(source.images, MEDIA_MARKER))
        chat = protocol.ChatInput(given, template_variables(variables), history.tools(tools))
        parts = self._ask(protocol.Render(-1, chat))
        text = "".join(part.text for part in parts)
        return self.encode(text, False) if tokenize else text

    def _id(self, text: str) -> int | None:
        ids = self.encode(text, False)
        return ids[0] if len(ids) == 1 else None

    def _ask(self, question: protocol.Tokenize | protocol.Detokenize | protocol.Render) -> list[Any]:
        client = self._engine.client()
        return client.ask(replace(question, id=client.next_id()))
