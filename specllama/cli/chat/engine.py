"""The engine of a chat: loaded, told to draft in another way, and let measure while nobody types."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import IO, Any

from specllama.cli import console, readout
from specllama.cli.answer import IDLE_SLICE_SECONDS, INTERRUPTED, Show, calibrate, generate
from specllama.cli.chat.conversation import Conversation
from specllama.cli.progress import Progress
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.client.stream import GenerationResult
from specllama.config.load import LoadSettings
from specllama.errors import EngineDiedError, SpecllamaError

_IDLE_SECONDS = 2.0  # at the prompt, before it is used for measuring


class LeaveError(Exception):
    """The chat ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ChatEngine:
    """A client and what it was loaded with; a context manager that ends it. log: where llama.cpp's log goes.

    info: what the engine says of the models, once they are loaded.
    """

    def __init__(self, settings: LoadSettings, log: IO[str] | None, verbose: bool) -> None:
        self.settings, self.info = settings, dict[str, Any]()
        self._loaded = self.info  # as the engine said it
        self._log, self._verbose = log or (sys.stderr if verbose else None), verbose or log is not None
        self._client = EngineClient(self._log)
        self._measuring: threading.Thread | None = None
        self._wanted = threading.Event()

    def __enter__(self) -> ChatEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def load(self, structured: bool = False) -> None:
        """Load the models and say what drafts. Raises what EngineClient.load raises, and what the chat
        template makes of a message.
        """
        progress = Progress(delay=1.0)
        self.info = self._client.load(
            self.settings, lambda name, share: progress.show(f"loading the {name}", share), self._verbose
        )
        progress.clear()
        self._loaded = self.info
        console.note(readout.start_line(self.info, structured))
        for text in self.info["notes"]:
            console.note(text if text.startswith("warning:") else f"note: {text}")
        if not self.info["chat_template"]:
            self._refuse()

    def _refuse(self) -> None:
        """Without a template that works there is no chat; the engine says which error that is."""
        request = m.Generate(
            self._client.next_id(), messages=[{"role": "user", "content": "Hello"}], params={"max_tokens": 1}
        )
        try:
            generate(self._client, request)
        except SpecllamaError as error:
            hint = "give another one with --chat-template-file, or use specllama run --raw"
            raise type(error)(error.message, hint) from None

    def draft_up_to(self, draft_max: int | None, structured: bool) -> bool:
        """Draft so many tokens from now on (None: auto); whether that made another engine of it, which knows
        no ids: one that was loaded without drafts, or for shorter ones.

        Raises UsageError for an impossible length, EngineDiedError where loading again fails, LeaveError
        where Ctrl-C stops that: the old engine is gone.
        """
        settings = replace(self.settings, draft_max=draft_max)
        self._stop_measuring()
        longest = 0 if self._loaded["draft_max"] == 0 else self._loaded["most_drafted"]
        if (draft_max is None and not longest) or (draft_max or 0) > longest:
            self.settings = settings
            self._reload(structured)
            return True
        self._client.configure(draft_max, settings.draft_min, settings.draft_p_min)
        self.settings, self.info = settings, {**self._loaded, "draft_max": draft_max}
        if draft_max == 0:
            self.info |= {"speculation": "off", "reason": "--draft-max 0"}
        console.note(readout.start_line(self.info, structured))
        return False

    def _reload(self, structured: bool) -> None:
        self._client.close()
        self._client = EngineClient(self._log)
        try:
            self.load(structured)
        except SpecllamaError as error:
            raise EngineDiedError(f"loading again failed: {error.message}", error.hint) from None
        except KeyboardInterrupt:
            raise LeaveError(INTERRUPTED) from None

    def ask(
        self,
        conversation: Conversation,
        params: Mapping[str, Any],
        speculate: bool,
        variables: Mapping[str, Any],
        into: GenerationResult,
        show: Show,
    ) -> int:
        """Answer the last message; the id of the generation. Raises what `generate` raises."""
        self._stop_measuring()
        request = m.Generate(
            self._client.next_id(),
            messages=conversation.messages(answered=False),
            params=dict(params),
            speculate=speculate,
            variables=dict(variables),
            follows=conversation.follows,
        )
        generate(self._client, request, show, into, hold_notices=True)
        return request.id

    def notices(self) -> list[str]:
        """What the engine had to say meanwhile."""
        found = list(self._client.notices)
        self._client.notices.clear()
        return found

    def measure(self, conversation: Conversation, variables: Mapping[str, Any]) -> None:
        """Measure what is missing while nobody asks, in slices that hardly delay who does; then evaluate
        again what that took out of the cache.
        """
        if not self.settings.calibrate:
            return
        again = m.Generate(
            self._client.next_id(),
            messages=conversation.messages(),
            params={"max_tokens": 1, "temperature": 0},
            speculate=False,
            variables=dict(variables),
            follows=conversation.turns[-1].id if conversation.turns else None,
        )

        def work(client: EngineClient) -> None:
            if self._wanted.wait(_IDLE_SECONDS):
                return
            with contextlib.suppress(SpecllamaError):
                missing = True
                while missing and not self._wanted.is_set():
                    missing = bool(client.calibrate(IDLE_SLICE_SECONDS).get("missing"))
                if not self._wanted.is_set():
                    for _ in client.generate(again):
                        pass

        self._wanted.clear()
        self._measuring = threading.Thread(target=work, args=(self._client,), daemon=True)
        self._measuring.start()

    def calibrate(self) -> None:
        """Measure now, at the end."""
        if self.settings.calibrate:
            calibrate(self._client)

    def _stop_measuring(self) -> None:
        self._wanted.set()
        if self._measuring is not None:
            self._measuring.join()
            self._measuring = None
