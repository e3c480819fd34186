"""The engine of a chat: loads the models, changes the draft length; and what its requests have besides the
conversation: the sampling parameters, from the typed text of `/set` and back, and the tools: the file that
describes them, the calls in an answer, the results that the user types.
"""

from __future__ import annotations

import json
import math
import queue
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from typing import IO, Any

from specllama import errors
from specllama.calls import history
from specllama.calls.scanner import CallReader, ReadCall
from specllama.calls.tools import Tools
from specllama.cli import console, readout
from specllama.cli.answer import INTERRUPTED, Show, calibrate, engine_log, generate, load, may_loop
from specllama.cli.chat.conversation import Conversation
from specllama.cli.chat.terminal import Screen
from specllama.cli.formatting import nearest
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.config import build
from specllama.config.load import LoadSettings
from specllama.config.text_file import read_text
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.errors import ContextLengthError, EngineDiedError, SpecllamaError, UsageError
from specllama.json_types import JsonObject, why_not_json


class LeaveError(Exception):
    """The chat ends with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class ChatEngine(AbstractContextManager["ChatEngine"]):
    """An engine process and its settings; a context manager that ends it. values: option values. log: where
    llama.cpp's log goes. measure_when_idle: see protocol.Load. tools: the model's. end_loops: whether
    repetitions end an answer.
    """

    def __init__(self, settings: LoadSettings, values: Mapping[str, Any], log: IO[str] | None) -> None:
        self.settings, self.measure_when_idle, self.end_loops = settings, False, False
        self.tools: Tools | None = None
        self._loaded: LoadInfo | None = None  # as the engine reported it
        self._info: LoadInfo | None = None
        self._values, self._log = values, engine_log(log, values.get("verbose", False))
        self._client = EngineClient(self._log)

    @property
    def info(self) -> LoadInfo:
        """The loaded models, and how they draft now."""
        assert self._info is not None
        return self._info

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def load(self, structured: bool = False) -> None:
        """Load the models, show the start line. Raises as EngineClient.load, and as the template."""
        line = partial(readout.start_line, structured=structured)
        more = {"measure_when_idle": self.measure_when_idle}
        self._loaded = self._info = load(self._client, self._values, self.settings, line, True, **more)
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
        """Tokens of a prompt from turn `first` on; None: more than the context has. Raises TemplateError."""
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
        notices = list(self._client.notices)
        self._client.notices.clear()
        return notices

    def calibrate(self) -> None:
        """Measure costs, at the end of the chat."""
        if self.settings.calibrate:
            calibrate(self._client)


NAMES = tuple(f.name for f in fields(SamplingParams) if f.name not in ("logprobs", "n"))
_ALIASES = {"temp": "temperature", "n": "max_tokens", "n_predict": "max_tokens"}
_TEXTS = ("stop", "json_schema", "grammar")
UNSET = ("default", "none")


def parameter(typed: str) -> str:
    """The field of SamplingParams for a typed name or flag of llama.cpp. Raises UsageError."""
    name = typed.lower().lstrip("-").replace("-", "_")
    name = _ALIASES.get(name, name)
    if name == "logprobs":
        refuse_logprobs({name: 0})
    if name not in NAMES:
        raise UsageError(f"there is no parameter {typed[:60]!r}{nearest(name, NAMES)}", "/set shows all")
    return name


def assign(params: Mapping[str, Any], name: str, text: str) -> JsonObject:
    """The parameters with one set from its typed value, or unset (default, none). Raises UsageError."""
    rest = {key: value for key, value in params.items() if key != name}
    if text in UNSET or (name, text) == ("seed", "-1"):
        return rest
    try:
        changed = {**rest, name: _value(name, text)}
        merged = SamplingParams.merge(changed)
        if name in ("json_schema", "grammar"):
            from specllama.text.grammar import check  # needs numpy

            check(**{name: getattr(merged, name)})
    except UsageError as error:
        raise UsageError(error.message[:200], error.hint) from None
    return changed


def shown(name: str, params: Mapping[str, Any], used: Mapping[str, Any]) -> str:
    """A parameter and its value: the one set, else the one that the engine last used, else the default."""
    if params.get(name) is not None:
        return f"{name:18} {_text(params[name])}   (set)"
    if name == "seed":
        return f"{name:18} random"
    return f"{name:18} {_text(used.get(name, getattr(SamplingParams(), name)))}"


def idle(params: Mapping[str, Any]) -> list[str]:
    """What has no effect of the parameters that are set, a sentence for each reason."""
    sentences = SamplingParams.merge(params).without_effect([*params])
    return [errors.with_option_names(sentence, lambda name, _: name) for sentence in sentences]


def restored(
    system: str, params: Mapping[str, Any], now_system: str, now_params: Mapping[str, Any]
) -> list[str]:
    """Lines on a system message and parameters that take the place of others, and on what goes for them."""
    lines = []
    if now_system:
        lines.append(f"system message: {_text(now_system)}")
    if system and system != now_system:
        lines.append(f"the system message before is left out: {_text(system)}")
    if there := [f"{name} {_text(value)}" for name, value in now_params.items() if value is not None]:
        lines.append(f"parameters: {', '.join(there)}")
    gone = [name for name, value in params.items() if value is not None and now_params.get(name) is None]
    if gone:
        lines.append(f"back to the defaults: {', '.join(gone)}")
    return lines


def refuse_logprobs(params: Mapping[str, Any]) -> None:
    """Raises UsageError for logprobs, which a chat cannot show."""
    if params.get("logprobs") is not None:
        raise UsageError("a chat shows no log probabilities", "specllama run --logprobs N --json does")


def _value(name: str, text: str) -> Any:
    """JSON where it is JSON, else the text itself; @FILE is the text of a file."""
    if name in ("json_schema", "grammar") and text.startswith("@"):
        return read_text(text[1:], name)
    if name == "logit_bias" and not text.startswith("{"):
        return build.sampling({"logit_bias": text.split()})["logit_bias"]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    if name in ("stop", "dry_sequence_breakers") and isinstance(value, str):
        return [value]
    if name == "seed":
        return PARAMETERS[name].checked(value)
    return text if name in _TEXTS and not isinstance(value, (str, list)) else value


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return " ".join(f"{i}{b:+g}" if b > -math.inf else f"{i}-inf" for i, b in value.items()) or "none"
    if isinstance(value, (tuple, list)):
        return " ".join(json.dumps(text, ensure_ascii=False) for text in value) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def read_tools(path: str) -> Tools | None:
    """The tools in a file: a list as in the OpenAI API, or "tools". Raises NotFoundError, UsageError."""
    try:
        tools = json.loads(read_text(path, "tools"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f": {path} is no JSON: {why_not_json(error)[:100]}", option="tools") from None
    if isinstance(tools, dict):
        tools = tools.get("tools")
    if not isinstance(tools, list):
        hint = 'as [{"type": "function", "function": {"name": …, "parameters": …}}]'
        raise UsageError(f": {path} has no list of tools", hint, option="tools")
    try:
        return history.tools(tools)
    except UsageError as error:
        raise UsageError(f": {path}: {error.message}", error.hint, option="tools") from None


def call_text(call: JsonObject) -> str:
    """A call of a conversation as `show_calls` shows it."""
    function = call.get("function") or {}
    return f"{function.get('name')}({json.dumps(function.get('arguments'), ensure_ascii=False)})"


def show_calls(screen: Screen, calls: Sequence[ReadCall]) -> list[JsonObject]:
    """Show the calls in an answer, each on a line. Returns them as chat templates read them."""
    shown = list[JsonObject]()
    for call in calls:
        screen.line(f"{call.name}({call.arguments})")
        function = {"name": call.name, "arguments": json.loads(call.arguments)}
        shown.append({"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function})
    return shown
