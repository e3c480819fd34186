"""Decodes the images of requests, in threads, once number and size are checked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from specllama.client.prompt_input import Image
from specllama.errors import BusyError, UsageError
from specllama.images import MAX_ALL_PIXELS, MAX_IMAGES, load_image, load_image_text
from specllama.server.dialects.shared.fields import FieldError
from specllama.server.dialects.shared.image_parts import GivenImage, unusable
from specllama.server.http.body import MAX_HELD

_URL_HINT = "images at an address are read only where the server was started with --allow-image-urls"
_FEWER = "leave out those that no longer matter"


class ImageReader:
    """Reads the images of all requests. urls: whether addresses on the web are read."""

    def __init__(self, urls: bool) -> None:
        self._urls = urls
        self._turns = asyncio.Semaphore(4)  # requests whose images are read at once
        self._held = 0  # characters of all images that wait for that

    async def read(self, given: Sequence[GivenImage]) -> list[Image]:
        """The decoded images of a request, in order. Raises FieldError for what is no image, and for too
        many; ResourceError without room for them, BusyError while too many wait.
        """
        self._check(given)
        size = sum(len(image.text) for image in given)
        if self._held and self._held + size > MAX_HELD:
            raise BusyError("too many images wait to be read", "ask again later")
        self._held += size
        try:
            async with self._turns:
                return [image async for image in self._decoded(given)]
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

    async def _decoded(self, given: Sequence[GivenImage]) -> AsyncIterator[Image]:
        """Each of them, in order. Raises as `read` does."""
        n_pixels = 0
        for one in given:
            image = await asyncio.to_thread(self._one, one)
            n_pixels += image.width * image.height
            if n_pixels > MAX_ALL_PIXELS:
                n = MAX_ALL_PIXELS // 1000**2
                why = f"the images of a request may have {n} million pixels together, these have more"
                raise FieldError(f"{one.path}: {why}: {_FEWER}, or send smaller ones", one.param)
            yield image

    def _one(self, given: GivenImage) -> Image:
        """Raises FieldError, ResourceError."""
        try:
            if _is_url(given.text):
                from specllama.server.image_urls import ImageFetcher

                return load_image(ImageFetcher().get(given.text))
            return load_image_text(given.text)
        except UsageError as error:
            raise unusable(given, f"{error.message}; {error.hint}") from None


def _is_url(text: str) -> bool:
    """Whether an image is named by an address on the web."""
    return text[:8].lower().startswith(("http://", "https://"))
