"""Checks prompts, messages and sampling parameters and converts them to one form. Knows no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, TypedDict, TypeGuard

from specllama.api import images
from specllama.calls.history import parsed_arguments
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.errors import SpecllamaError, UsageError
from specllama.images import check_n_images
from specllama.json_types import JsonObject
from specllama.wording import counted


class TextPrompt(TypedDict):
    """A prompt as text; control tokens in it are parsed, no chat template is applied."""

    prompt: str


class ImagePrompt(TypedDict):
    """A prompt as text with images, in vLLM's form: {"image": an image, or a list of them}. Where the text
    has no markers <__media__>, they stand before it.
    """

    prompt: str
    multi_modal_data: Mapping[str, Any]


class TokensPrompt(TypedDict):
    """A prompt as token ids."""

    prompt_token_ids: Sequence[int]


Message = Mapping[str, Any]
Prompt = str | Sequence[int] | TextPrompt | ImagePrompt | TokensPrompt
Params = SamplingParams | Mapping[str, Any]
Prediction = str | Sequence[str | None] | None
_ONE_EACH = "give one for each prompt, or one for all of them"


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The prompt of a request: one of text, ids and messages. images: in order; a text has media markers in
    their places, and contents of messages have themselves.
    """

    text: str | None = None
    ids: tuple[int, ...] | None = None
    messages: list[JsonObject] | None = None
    images: tuple[images.ImageSource, ...] = ()

    def prompt_input(self, variables: Mapping[str, Any], tools: Tools | None) -> protocol.PromptInput:
        """The prompt for the engine. variables, tools: of messages."""
        if self.messages is not None:
            return protocol.ChatInput(self.messages, dict(variables), tools)
        if self.ids is not None:
            return protocol.TokenInput(list(self.ids))
        return protocol.TextInput(self.text or "")

    def with_images(
        self, prompt: protocol.PromptInput, problem: SpecllamaError | None = None
    ) -> protocol.PromptInput:
        """The prompt with its images, which are decoded now. problem: why the model reads none; those of
        earlier messages have words then. Raises it, UsageError, ResourceError.
        """
        if problem is not None:
            if not isinstance(prompt, protocol.ChatInput) or images.new_images(prompt.messages):
                raise problem
            return replace(prompt, messages=images.written(prompt.messages, {}))
        check_n_images(self.images)
        loaded = [one.load() for one in self.images]
        markers = [image.marker for image in loaded]
        if isinstance(prompt, protocol.ChatInput):
            by_source = dict(zip(self.images, markers, strict=True))
            return replace(prompt, messages=images.written(prompt.messages, by_source), images=loaded)
        return protocol.TextInput(images.placed(self.text or "", markers), loaded)


def sources(prompts: Prompt | Sequence[Prompt]) -> list[PromptSource]:
    """One source for each prompt; a list of ids is one prompt. Raises UsageError."""
    if isinstance(prompts, (str, Mapping)) or _is_ids(prompts):
        return [source(prompts)]
    if not _is_list(prompts):
        raise UsageError(f"prompts must be texts or lists of token ids, not {type(prompts).__name__}")
    read = []
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, Mapping) and "role" in prompt:
            raise UsageError("these are messages, not prompts", "use chat")
        try:
            read.append(source(prompt))
        except UsageError as error:
            raise UsageError(f"prompt {i}: {error.message}", error.hint) from None
    return read


def prompts_or_ids(
    prompts: Prompt | Sequence[Prompt] | None, ids: Sequence[int] | Sequence[Sequence[int]] | None
) -> list[PromptSource]:
    """As `sources`, of the one that is given. Raises UsageError."""
    if (prompts is None) == (ids is None):
        raise UsageError("give either prompts or prompt_token_ids")
    if ids is not None and not (_is_ids(ids) or (_is_list(ids) and all(map(_is_list, ids)))):
        raise UsageError(f"prompt_token_ids must be lists of token ids, not {_short(ids)}")
    return sources(prompts if ids is None else ids)  # type: ignore[arg-type]


def source(prompt: Prompt) -> PromptSource:
    """One prompt. Raises UsageError."""
    if isinstance(prompt, Mapping):
        given: Mapping[str, object] = prompt
        if set(given) == {"prompt"} and isinstance(text := given["prompt"], str):
            return PromptSource(text=text)
        if set(given) == {"prompt", "multi_modal_data"} and isinstance(text := given["prompt"], str):
            given_images = images.images_of_prompt(given["multi_modal_data"])
            return PromptSource(text=images.marked(text, len(given_images)), images=tuple(given_images))
        if set(given) == {"prompt_token_ids"}:
            return PromptSource(ids=token_ids(given["prompt_token_ids"]))
        raise UsageError(
            'a prompt as a dict is {"prompt": text}, with images {"prompt": text, "multi_modal_data": '
            '{"image": …}}, or {"prompt_token_ids": ids}'
        )
    return PromptSource(text=prompt) if isinstance(prompt, str) else PromptSource(ids=token_ids(prompt))


def conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[PromptSource]:
    """One source for each conversation; a list of messages is one. Raises UsageError."""
    if not _is_list(messages) or len(messages) == 0 or isinstance(messages[0], Mapping):
        return [conversation(messages)]  # type: ignore[arg-type]
    checked = []
    for i, one in enumerate(messages):
        try:
            checked.append(conversation(one))
        except UsageError as error:
            raise UsageError(f"conversation {i}: {error.message}", error.hint) from None
    return checked


def conversation(messages: Sequence[Message]) -> PromptSource:
    """One conversation; the template decides which roles and contents it accepts. Raises UsageError."""
    if not _is_list(messages):
        raise UsageError(f"messages must be a list of dicts, not {type(messages).__name__}")
    if len(messages) == 0:
        raise UsageError("there are no messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UsageError(f'messages[{i}] must be a dict with a "role", not {_short(message)}')
        if not isinstance(message.get("content"), (str, list, tuple, type(None))):
            problem = f'messages[{i}]: "content" must be a text, not {_short(message["content"])}'
            raise UsageError(problem, "texts and images go in a list")
    read = []
    for i, message in enumerate(messages):
        parts = images.parts_of(message.get("content"), f"messages[{i}].content")
        read.append(message if parts is None else {**message, "content": parts})
    ordered = parsed_arguments(read)
    return PromptSource(messages=ordered, images=tuple(images.images_of(ordered)))


def prompt_or_messages(given: Prompt | Sequence[Message]) -> PromptSource:
    """One prompt or one conversation. Raises UsageError."""
    if _is_list(given) and len(given) and isinstance(given[0], Mapping):
        return conversation(given)
    return source(given)  # type: ignore[arg-type]


def sampling(given: Params | Sequence[Params] | None, n: int) -> list[JsonObject]:
    """The sampling parameters that are set, for each of n requests. Raises UsageError."""
    if isinstance(given, (SamplingParams, Mapping)) or given is None:
        return [_params(given)] * n
    if not _is_list(given):
        raise UsageError(f"sampling_params must be SamplingParams or a dict, not {type(given).__name__}")
    if len(given) != n:
        raise UsageError(f"sampling_params is a list of {len(given)} for {counted(n, 'prompt')}", _ONE_EACH)
    return [_params(one) for one in given]


def predictions(given: Prediction, n: int) -> list[str]:
    """The prediction for each of n requests, "" for none. Raises UsageError."""
    if given is None or isinstance(given, str):
        return [given or ""] * n
    if not _is_list(given) or not all(one is None or isinstance(one, str) for one in given):
        raise UsageError(f"prediction must be a text, or one for each prompt, not {_short(given)}")
    if len(given) != n:
        raise UsageError(f"prediction is a list of {len(given)} for {counted(n, 'prompt')}", _ONE_EACH)
    return [one or "" for one in given]


def n_completions(n: int | None, params: Mapping[str, Any]) -> int:
    """The number of texts for a prompt: the argument, or else the parameter. Raises UsageError."""
    given = params.get("n")
    as_parameter: int = 1 if given is None else PARAMETERS["n"].checked(given)
    checked: int = as_parameter if n is None else PARAMETERS["n"].checked(n)
    if as_parameter not in (1, checked):
        raise UsageError(f"sampling_params ask for {as_parameter} texts, this call for {checked}")
    return checked


def _params(given: object) -> JsonObject:
    if given is None:
        return {}
    if isinstance(given, SamplingParams):
        return {f.name: getattr(given, f.name) for f in fields(given)}
    if isinstance(given, Mapping):
        SamplingParams.merge(given)
        return dict(given)
    raise UsageError(f"sampling_params must be SamplingParams or a dict, not {type(given).__name__}")


def token_ids(given: object) -> tuple[int, ...]:
    """A prompt as ids. Raises UsageError."""
    if not _is_list(given):
        raise UsageError(f"a prompt must be a text or a list of token ids, not {_short(given)}")
    try:
        if any(isinstance(i, bool) for i in given):
            raise TypeError
        ids = tuple(index(i) for i in given)
    except TypeError:
        raise UsageError("token ids must be whole numbers") from None
    if not ids:
        raise UsageError("the list of token ids is empty")
    return ids


def _is_ids(given: object) -> TypeGuard[Sequence[int]]:
    """Whether this is a list of ids rather than of prompts; an empty one is a list of no prompts."""
    if not _is_list(given) or len(given) == 0:
        return False
    try:
        index(given[0])
    except TypeError:
        return False
    return True


def _is_list(given: object) -> TypeGuard[Sequence[Any]]:
    """Whether it is a sequence, arrays included; not a text or bytes."""
    if isinstance(given, (str, bytes, bytearray, memoryview, Mapping)):
        return False
    return isinstance(given, Sequence) or (hasattr(given, "__getitem__") and hasattr(given, "__len__"))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
