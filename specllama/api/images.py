"""Images in prompts of the Python API: the forms in which they are given. They are decoded once the model is
known, when the prompt is sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specllama.client.protocol import Image
from specllama.errors import UsageError, quoted
from specllama.images import (
    LEFT_OUT,
    MEDIA_MARKER,
    join_around,
    load_array,
    load_image,
    load_image_file,
    load_image_text,
    load_pil,
)
from specllama.json_types import JsonObject
from specllama.wording import counted

_TEXTS = ("text", "input_text", "output_text")
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

    def load(self) -> Image:
        """Raises UsageError, ResourceError."""
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
    it is. where: the path of the content. Raises UsageError.
    """
    if not isinstance(content, Sequence) or isinstance(content, str):
        return None
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
