"""The engine of a chat: loads the models, and changes the draft length."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.cli import console, readout
from specllama.cli.answer import INTERRUPTED, Show, calibrate, engine_log, generate, load, may_loop
from specllama.cli.chat.conversation import Conversation
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.config.load import LoadSettings
from specllama.errors import ContextLengthError, EngineDiedError, SpecllamaError


class LeaveError(Exception):
    """The chat ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ChatEngine:
    """An engine process and its settings; a context manager that ends it. log: where llama.cpp's log goes.
    measure_when_idle: see protocol.Load. tools: the model's. end_loops: whether repetitions end an answer.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, verbose: bool) -> None:
        self.settings, self.measure_when_idle, self.end_loops = settings, False, False
        self.tools: Tools | None = None
        self._loaded: LoadInfo | None = None  # as the engine reported it
        self._info: LoadInfo | None = None
        self._log, self._verbose = engine_log(log, verbose), verbose or log is not None
        self._client = EngineClient(self._log)

    @property
    def info(self) -> LoadInfo:
        """The loaded models, and how they draft now."""
        assert self._info is not None
        return self._info

    def __enter__(self) -> ChatEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def load(self, structured: bool = False) -> None:
        """Load the models, show the start line. Raises as EngineClient.load, and as the template."""
        self._loaded = self._info = load(self._client, self.settings, self._verbose, self.measure_when_idle)
        console.note(readout.start_line(self.info, structured))
        for note in self.info.notes:
            console.show(note)
        if not self.info.template_works:  # without a template there is no chat: the engine says why
            chat = protocol.ChatInput([{"role": "user", "content": "Hello"}])
            request = protocol.Generate(self._client.next_id(), chat, {"max_tokens": 1})
            try:
                generate(self._client, request)
            except SpecllamaError as error:
                hint = "give another one with --chat-template-file, or use specllama run --raw"
                raise type(error)(error.message, hint) from None

    def draft_up_to(self, draft_max: int | None, structured: bool) -> bool:
        """Draft at most draft_max tokens from now on (None: auto). Returns whether a new engine process was
        needed, which knows no ids: the old one was loaded without drafts, or for shorter ones.

        Raises UsageError for an impossible length, EngineDiedError where loading again fails, LeaveError
        where Ctrl-C interrupts it: the old engine is gone.
        """
        settings = replace(self.settings, draft_max=draft_max)
        assert self._loaded is not None
        longest = 0 if self._loaded.draft_max == 0 else self._loaded.longest_draft
        if (draft_max is None and not longest) or (draft_max or 0) > longest:
            self.settings, self.measure_when_idle = settings, False
            self._client.close()
            self._client = EngineClient(self._log)
            try:
                self.load(structured)
            except SpecllamaError as error:
                raise EngineDiedError(f"loading again failed: {error.message}", error.hint) from None
            except KeyboardInterrupt:
                raise LeaveError(INTERRUPTED) from None
            return True
        self._client.configure(draft_max, settings.draft_min, settings.draft_p_min)
        off = "--draft-max 0" if draft_max == 0 else self._loaded.off_reason
        self.settings, self._info = settings, replace(self._loaded, draft_max=draft_max, off_reason=off)
        console.note(readout.start_line(self.info, structured))
        return False

    def answer_reader(self) -> CallReader | None:
        """The reader of the next answer, see LoadInfo.answer_reader."""
        return self.info.answer_reader(self.tools)

    def answer(
        self,
        conversation: Conversation,
        params: Mapping[str, Any],
        speculate: bool,
        variables: Mapping[str, Any],
        result: GenerationResult,
        show: Show,
        prefix: str = "",
    ) -> int:
        """Answer the last message; returns the id of the generation. prefix: the beginning of the answer, if
        it is there. Raises what `generate` raises.
        """
        chat = protocol.ChatInput(
            conversation.messages(answered=False),
            dict(variables),
            self.tools,
            prefix,
            follows=conversation.follows,
            images=conversation.images(),
            earlier=conversation.tokens if conversation.follows is None else None,
        )
        request = protocol.Generate(
            self._client.next_id(),
            chat,
            dict(params),
            speculate=speculate,
            show_ids=True,
            end_loops=self.end_loops and may_loop(params),
        )
        generate(self._client, request, show, result, hold_notices=True)
        return request.id

    def count(
        self, conversation: Conversation, first: int, variables: Mapping[str, Any], prefix: str = ""
    ) -> int | None:
        """Tokens of a prompt from the turn `first` on; None where it has more than the context. Raises
        TemplateError.
        """
        messages, images = conversation.messages(answered=False, first=first), conversation.images(first)
        chat = protocol.ChatInput(messages, dict(variables), self.tools, prefix, images=images)
        question = protocol.CountTokens(self._client.next_id(), chat)
        inbox = queue.SimpleQueue[protocol.Message | SpecllamaError]()
        self._client.submit(question, inbox.put)
        answer = inbox.get()
        if isinstance(answer, ContextLengthError):
            return None
        if isinstance(answer, SpecllamaError):
            raise answer
        assert isinstance(answer, protocol.TokenCount)
        return answer.n if answer.n < self.info.n_ctx else None

    def notices(self) -> list[str]:
        """Notices of the engine since the last call."""
        notices = list(self._client.notices)
        self._client.notices.clear()
        return notices

    def calibrate(self) -> None:
        """Measure costs, at the end of the chat."""
        if self.settings.calibrate:
            calibrate(self._client)
