"""Checks prompts, messages and sampling parameters and converts them to one form. Knows no engine.

Images are decoded once the model is known, when the prompt is sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, TypedDict, TypeGuard

from specllama.calls.history import ROLES, parsed_arguments
from specllama.calls.tools import Tools
from specllama.client import protocol
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.errors import SpecllamaError, UsageError, quoted
from specllama.images import (
    LEFT_OUT,
    MEDIA_MARKER,
    check_n_images,
    join_around,
    load_array,
    load_image,
    load_image_file,
    load_image_text,
    load_pil,
)
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
_TEXTS = ("text", "input_text", "output_text")
_FOR_TEMPLATES = ("refusal", "thinking")
_IMAGES = ("image", "image_url", "input_image", "image_pil")
_HINT = "give a PIL image, a path, the bytes of an image file, or an array of numpy"
_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True, eq=False)
class ImageSource:
    """An image as it was given: one of Pillow, an array, the bytes of a file, a path, or base64 with or
    without `data:`. where: names it in messages. is_path: a text is a path.
    """

    value: Any
    where: str
    is_path: bool

    def load(self) -> protocol.Image:
        """Raises NotFoundError, UsageError, ResourceError."""
        value = self.value
        if _is_of(value, "PIL.Image", "Image"):
            return load_pil(value, self.where)
        if _is_of(value, "numpy", "ndarray"):
            return load_array(value, self.where)
        if isinstance(value, _BYTES):
            return load_image(bytes(value), self.where)
        if isinstance(value, os.PathLike) or (
            self.is_path and isinstance(value, str) and value[:5] != "data:"
        ):
            return load_image_file(value)
        if isinstance(value, str):
            return load_image_text(value, self.where)
        raise UsageError(f"{self.where}: an image cannot be {quoted(type(value).__name__)}", _HINT)


def _is_of(value: object, module: str, kind: str) -> bool:
    """Whether it is of this class of a module, which is not imported for that."""
    return module in sys.modules and isinstance(value, getattr(sys.modules[module], kind))


Parts = list["str | ImageSource"]


def parts_of(content: object, where: str) -> Parts | None:
    """The texts and images of a list of parts, in order; None for what has no image, which templates get as
    it is. where: the path of the content. Raises UsageError, also for a part of another type.
    """
    if not isinstance(content, Sequence) or isinstance(content, str):
        return None
    for i, part in enumerate(content):
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind not in (types := (*_TEXTS, *_FOR_TEMPLATES, *_IMAGES)):
            raise UsageError(f"{where}[{i}].type must be one of {', '.join(types)}, not {quoted(kind)}")
    if not any(_is_image(part) or not isinstance(part, str | Mapping) for part in content):
        return None
    parts: Parts = []
    for i, part in enumerate(content):
        here = f"{where}[{i}]"
        if _is_image(part):
            parts.append(_source(part, here))
        elif isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Mapping) and part.get("type") in _TEXTS and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            raise UsageError(f"{here} must be a text or an image, not {quoted(part)}", _HINT)
    return parts


def images_of_prompt(data: object) -> list[ImageSource]:
    """The images of vLLM's `multi_modal_data`. Raises UsageError."""
    if not isinstance(data, Mapping) or set(data) - {"image"}:
        raise UsageError('multi_modal_data is {"image": one image, or a list of them}', _HINT)
    given = data.get("image")
    given = given if isinstance(given, list | tuple) else [given] if "image" in data else []
    return [ImageSource(one, f"image {i}", True) for i, one in enumerate(given, 1)]


def marked(prompt: str, n_images: int) -> str:
    """A raw prompt with as many media markers as images; without any, all images stand before the text.
    Raises UsageError for another number.
    """
    n = prompt.count(MEDIA_MARKER)
    if n not in (0, n_images):
        raise UsageError(
            f"the prompt has {n} markers {MEDIA_MARKER} for {counted(n_images, 'image')}", "give one for each"
        )
    return prompt if n else MEDIA_MARKER * n_images + prompt


def placed(prompt: str, markers: Sequence[str]) -> str:
    """A prompt of `marked` with the markers of images in place of the media markers."""
    first, *rest = prompt.split(MEDIA_MARKER)
    return first + "".join(marker + text for marker, text in zip(markers, rest, strict=True))


def images_of(messages: Sequence[JsonObject]) -> Iterator[ImageSource]:
    """The images of messages whose contents are `parts_of`, in order."""
    for message in messages:
        if isinstance(content := message.get("content"), list):
            yield from (part for part in content if isinstance(part, ImageSource))


def new_images(messages: Sequence[JsonObject]) -> list[ImageSource]:
    """The images that a model which reads text only must refuse, as in the server: of a last message of the
    user, unless results of tools are before it. Those of other messages have words.
    """
    is_said = messages[-1].get("role") == "user"
    after_result = any(message.get("role") == "tool" for message in messages[-2:-1])
    return list(images_of(messages[-1:])) if is_said and not after_result else []


def written(messages: Sequence[JsonObject], markers: Mapping[ImageSource, str]) -> list[JsonObject]:
    """Messages with texts for contents that have images, with words for images without a marker."""
    texts = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(isinstance(part, ImageSource) for part in content):
            given = [p if isinstance(p, str) else markers.get(p, LEFT_OUT) for p in content]
            pairs = [(text, part in markers) for text, part in zip(given, content, strict=True)]
            message = {**message, "content": join_around(pairs, "\n")}
        texts.append(message)
    return texts


def _is_image(part: object) -> bool:
    if isinstance(part, Mapping):
        return part.get("type") in _IMAGES
    is_file = isinstance(part, (os.PathLike, *_BYTES))
    return is_file or _is_of(part, "PIL.Image", "Image") or _is_of(part, "numpy", "ndarray")


def _source(part: Any, where: str) -> ImageSource:
    """The image of a part: OpenAI's forms, Anthropic's, vLLM's, one of Pillow, or a path."""
    if not isinstance(part, Mapping):
        return ImageSource(part, where, True)
    for name in ("image_pil", "image", "path"):
        if part.get(name) is not None:
            return ImageSource(part[name], where, True)
    given = part.get("image_url") or part.get("url") or part.get("source")
    for name in ("url", "data"):
        given = given.get(name) if isinstance(given, Mapping) and name in given else given
    if not given:
        raise UsageError(f"{where}: there is no image in it", _HINT)
    return ImageSource(given, where, False)


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The prompt of a request: one of text, ids and messages. images: in order; a text has media markers in
    their places, and contents of messages have themselves.
    """

    text: str | None = None
    ids: tuple[int, ...] | None = None
    messages: list[JsonObject] | None = None
    images: tuple[ImageSource, ...] = ()

    def prompt_input(self, variables: Mapping[str, Any], tools: Tools | None) -> protocol.PromptInput:
        """The prompt for the engine. variables, tools: of messages."""
        if self.messages is not None:
            return protocol.ChatInput(self.messages, dict(variables), tools)
        if self.ids is not None:
            return protocol.MixedInput([list(self.ids)])
        return protocol.TextInput(self.text or "")

    def with_images(
        self, prompt: protocol.PromptInput, problem: SpecllamaError | None = None
    ) -> protocol.PromptInput:
        """The prompt with its images, which are decoded now. problem: why the model reads none; those of
        earlier messages have words then. Raises it, UsageError, ResourceError.
        """
        if problem is not None:
            if not isinstance(prompt, protocol.ChatInput) or new_images(prompt.messages):
                raise problem
            return replace(prompt, messages=written(prompt.messages, {}))
        check_n_images(self.images)
        loaded = [one.load() for one in self.images]
        markers = [image.marker for image in loaded]
        if isinstance(prompt, protocol.ChatInput):
            by_source = dict(zip(self.images, markers, strict=True))
            return replace(prompt, messages=written(prompt.messages, by_source), images=loaded)
        return protocol.TextInput(placed(self.text or "", markers), loaded)


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
        raise UsageError(f"prompt_token_ids must be lists of token ids, not {quoted(ids)}")
    return sources(prompts if ids is None else ids)  # type: ignore[arg-type]


def source(prompt: Prompt) -> PromptSource:
    """One prompt. Raises UsageError."""
    if isinstance(prompt, Mapping):
        given: Mapping[str, object] = prompt
        if set(given) == {"prompt"} and isinstance(text := given["prompt"], str):
            return PromptSource(text=text)
        if set(given) == {"prompt", "multi_modal_data"} and isinstance(text := given["prompt"], str):
            given_images = images_of_prompt(given["multi_modal_data"])
            return PromptSource(text=marked(text, len(given_images)), images=tuple(given_images))
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
    """One conversation, with the roles that the server takes. A content may be missing, and is empty then.
    Raises UsageError.
    """
    if not _is_list(messages):
        raise UsageError(f"messages must be a list of dicts, not {type(messages).__name__}")
    if len(messages) == 0:
        raise UsageError("there are no messages")
    read = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
            raise UsageError(f'messages[{i}] must be a dict with a "role", not {quoted(message)}')
        if role not in ROLES:
            raise UsageError(f"messages[{i}].role must be one of {', '.join(ROLES)}, not {quoted(role)}")
        if message.get("tool_calls") and role != "assistant":
            raise UsageError(f"messages[{i}].tool_calls: only an assistant message has calls")
        content = "" if message.get("content") is None else message["content"]
        if not isinstance(content, (str, list, tuple)):
            problem = f'messages[{i}]: "content" must be a text, not {quoted(content)}'
            raise UsageError(problem, "texts and images go in a list")
        parts = parts_of(content, f"messages[{i}].content")
        role = "system" if role == "developer" else role
        read.append({**message, "role": role, "content": content if parts is None else parts})
    ordered = parsed_arguments(read)
    return PromptSource(messages=ordered, images=tuple(images_of(ordered)))


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
        raise UsageError(f"prediction must be a text, or one for each prompt, not {quoted(given)}")
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
        raise UsageError(f"a prompt must be a text or a list of token ids, not {quoted(given)}")
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
