"""Images in the prompts of requests: where they stand, what is put in their place, and their decoding, in
threads, once number and size are checked.

A request is read before its model is known, and no image is decoded before that. Until then each has a mark
in the text, which becomes the marker of the decoded image, or words for a model that reads text only.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, PrivateAttr

from specllama.client.protocol import Image
from specllama.errors import BusyError, UsageError
from specllama.images import (
    MAX_ALL_PIXELS,
    MAX_IMAGES,
    MEDIA_MARKER,
    load_image,
    load_image_text,
    remove_left,
)
from specllama.server.dialects.shared.fields import Body, FieldError, RequestBody
from specllama.server.http.body import MAX_HELD
from specllama.wording import counted

_KEY = secrets.token_hex(12)  # of this process: no text of a client has marks
_numbers = itertools.count()
# Texts are joined by line breaks, but nothing stands between a text and an image.
_MARK = re.compile(rf"(\n?)<image {_KEY} (\d+)>(\n?)")
_STORED = "no files are stored here: send the image itself, as data:image/png;base64,…"


Text = Annotated[str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)]
"""The annotation of a field that other parts than images have in other forms, in which it has no effect."""


class ImageUrl(Body):
    """OpenAI's form of an image: a data: URL in base64, or the address of one."""

    unnamed = frozenset({"format"})
    defaults: ClassVar[Mapping[str, Any]] = {"detail": "auto"}

    url: str = ""


@dataclass(frozen=True, slots=True)
class GivenImage:
    """An image as it was sent. param, path: the field at fault and the name of the part, for errors. text: a
    data: URL, base64, or another URL. problem: why there is none. number: of its mark.
    """

    param: str
    path: str
    text: str = ""
    problem: str = ""
    number: int = 0

    @property
    def mark(self) -> str:
        """Stands for the image in a text."""
        return f"<image {_KEY} {self.number}>"


def given_image(param: str, path: str, text: str = "", problem: str = "") -> GivenImage:
    """An image of a request, with a mark of its own."""
    problem = problem or ("" if text else "there is no image in it")
    return GivenImage(param, path, text, problem, next(_numbers))


def unusable(image: GivenImage, why: str) -> FieldError:
    return refusal(image.param, image.path, "image", why)


def refusal(param: str, path: str, kind: str, why: str) -> FieldError:
    """With the words by which Claude Code (2.1.332) and Codex (0.169) know what to leave out before they ask
    again. kind: of the part.
    """
    said = f"The {kind} data you provided does not represent a valid {kind}"
    return FieldError(f"{path}: could not process {kind}: {why}. {said}", param)


def images_of_field(values: Sequence[Any] | None, field: str) -> list[GivenImage]:
    """Images next to a content or a prompt. field: their path."""
    return [_image_of_item(value, field, f"{field}[{i}]") for i, value in enumerate(values or ())]


def _image_of_item(value: Any, field: str, path: str) -> GivenImage:
    """Base64, or a part as answers of other servers have them."""
    if isinstance(value, Mapping):
        value = value.get("image_url", value)
        value = value.get("url") if isinstance(value, Mapping) else value
    return given_image(field, path, value if isinstance(value, str) else "")


class ImageFields(Body):
    """The fields of a part of a content that is an image, in any API. data: base64, as in MCP."""

    image_url: str | ImageUrl | None = None
    image: Text = None
    data: Text = None
    file_id: Text = None

    def image_at(self, path: str, kind: str, source: Any) -> GivenImage:
        """The image. path: of the part. kind: its type. source: its field `source`."""
        url = self.image_url
        text = (url.url if isinstance(url, ImageUrl) else url) or self.image or self.data or ""
        if isinstance(source, str):
            text = text or source
        elif source is not None:
            text = text or source.data or source.url
        stored = self.file_id or getattr(source, "file_id", "") or kind == "image_file"
        problem = _STORED if stored and not text else ""
        return given_image(path, f"{path}.{kind}", text, problem)


def replaced(text: str, texts: Mapping[int, str], other: str) -> str:
    """A text with another one in place of each mark. texts: by number, between which and the texts around
    them no line breaks stay. other: for all marks that are not among them, with its line breaks.
    """
    if _KEY not in text:
        return text

    def put(match: re.Match[str]) -> str:
        here = texts.get(int(match[2]))
        return f"{match[1]}{other}{match[3]}" if here is None else here

    return _MARK.sub(put, text)


def numbers_in(text: str) -> set[int]:
    return {int(match[2]) for match in _MARK.finditer(text)} if _KEY in text else set()


def pair_markers(prompt: str, given: Sequence[GivenImage], field: str) -> str:
    """A raw prompt with marks in place of its media markers, in order. field: of the images. Raises
    FieldError for another number of images than of markers.
    """
    texts = prompt.split(MEDIA_MARKER)
    if len(texts) - 1 != len(given):
        how = f"{len(texts) - 1} markers {MEDIA_MARKER}, and {counted(len(given), 'image')}"
        raise FieldError(f"{field}: there must be as many as in the prompt, which has {how}", field)
    marks = (image.mark for image in given)
    return texts[0] + "".join(f"{next(marks)}{text}" for text in texts[1:])


class BodyImages(RequestBody):
    """The images of a body's prompt."""

    _sent_images: list[GivenImage] = PrivateAttr([])
    _images: Sequence[Image] = PrivateAttr(())

    @property
    def given_images(self) -> Sequence[GivenImage]:
        return self._sent_images

    def place_images(self, texts: Mapping[int, str], images: Sequence[Image]) -> None:
        """Put texts in place of the images' marks. texts: by number. images: whose markers these are."""
        raise NotImplementedError

    def refuse_images(self, how: str) -> None:
        """Put words in place of the images, since the model reads text only. how: why, and what would help.
        Raises FieldError if that changes what is asked for.
        """
        raise unusable(self.given_images[0], how)


_URL_HINT = "images at an address are read only where the server was started with --allow-image-urls"
_FEWER = "leave out those that no longer matter"
_MOST_KEPT = 64 << 20  # bytes of the pixels of images that no request has, at most MAX_IMAGES


class ImageReader:
    """Reads the images of all requests, and keeps the last ones: a conversation sends its images with each
    turn. urls: whether addresses on the web are read.
    """

    def __init__(self, urls: bool) -> None:
        remove_left()
        self._urls = urls
        self._turns = asyncio.Semaphore(4)  # requests whose images are read at once
        self._held = 0  # characters of all images that wait for that
        self._kept = dict[str, Image]()  # by digest, the one used last at the end

    async def read(self, given: Sequence[GivenImage], scope: str = "") -> list[Image]:
        """The decoded images of a request, in order. scope: of whoever sent it. Raises FieldError for what is
        no image, and for too many; ResourceError without room for them, BusyError while too many wait.
        """
        self._check(given)
        size = sum(len(image.text) for image in given)
        if self._held and self._held + size > MAX_HELD:
            raise BusyError("too many images wait to be read", "ask again later")
        self._held += size
        try:
            async with self._turns:
                return [image async for image in self._decoded(given, scope)]
        finally:
            self._held -= size

    def _check(self, given: Sequence[GivenImage]) -> None:
        """Check all that is known without decoding. Raises FieldError."""
        if len(given) > MAX_IMAGES:
            extra, n = given[MAX_IMAGES], len(given)
            why = f"a request may have at most {MAX_IMAGES} images, not {n}"
            raise FieldError(f"{extra.path}: {why}: {_FEWER}", extra.param)
        for image in given:
            problem = image.problem
            if not problem and not self._urls and _is_url(image.text):
                problem = _URL_HINT
            if problem:
                raise unusable(image, problem)

    async def _decoded(self, given: Sequence[GivenImage], scope: str) -> AsyncIterator[Image]:
        """Each of them, in order. Raises as `read` does."""
        n_pixels = 0
        for one in given:
            image = await asyncio.to_thread(self._one, one, scope)
            n_pixels += image.width * image.height
            if n_pixels > MAX_ALL_PIXELS:
                n = MAX_ALL_PIXELS // 1000**2
                why = f"the images of a request may have {n} million pixels together, these have more"
                raise FieldError(f"{one.path}: {why}: {_FEWER}, or send smaller ones", one.param)
            self._keep(image)
            yield image

    def _keep(self, image: Image) -> None:
        self._kept.pop(image.digest, None)
        self._kept[image.digest] = image
        kept = self._kept
        while len(kept) > MAX_IMAGES or sum(3 * i.width * i.height for i in kept.values()) > _MOST_KEPT:
            del kept[next(iter(kept))]

    def _one(self, given: GivenImage, scope: str) -> Image:
        """Raises FieldError, ResourceError."""
        try:
            if _is_url(given.text):
                from specllama.server.image_urls import ImageFetcher

                return load_image(ImageFetcher().get(given.text), scope=scope)
            return load_image_text(given.text, scope=scope)
        except UsageError as error:
            raise unusable(given, f"{error.message}; {error.hint}") from None


def _is_url(text: str) -> bool:
    """Whether an image is named by an address on the web."""
    return text[:8].lower().startswith(("http://", "https://"))
