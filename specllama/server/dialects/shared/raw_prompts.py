"""Prompts that are no conversations, in all of llama-server's forms: texts, ids, both, with images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any

from pydantic import Field, PrivateAttr

from specllama.client import protocol
from specllama.server.dialects.shared.fields import WHOLE_ITEMS, AtMost, Body, FieldError
from specllama.server.dialects.shared.image_parts import GivenImage, given_image, pair_markers
from specllama.server.dialects.shared.sampling_fields import MAX_CHOICES, MAX_PROMPTS, Ids, SamplingFields

MAX_PARTS, MAX_TEXTS = 4096, 256  # of a prompt in parts
Id = Annotated[int, Field(ge=0, lt=2**31)]
Mixed = Ids | Annotated[list[str | Id], AtMost(MAX_PARTS, 1), WHOLE_ITEMS]


class PromptObject(Body):
    """A prompt whose text is in a field. multimodal_data: images in base64, one for each marker in it."""

    prompt_string: str | Mixed
    multimodal_data: Annotated[list[str], AtMost(MAX_PARTS)] | None = None

    def marked(self, field: str) -> tuple[str | list[Any], list[GivenImage]]:
        """The prompt with marks in place of its markers, and its images. field: theirs. Raises FieldError."""
        given = [
            given_image(field, f"{field}[{i}]", text) for i, text in enumerate(self.multimodal_data or ())
        ]
        if isinstance(self.prompt_string, str):
            # Without images markers are a text like others.
            return pair_markers(self.prompt_string, given, field) if given else self.prompt_string, given
        if given:
            raise FieldError(f"{field}: the prompt must then be one text, not ids", field)
        return self.prompt_string, given


Prompts = Annotated[list[str | Id | PromptObject | Mixed], AtMost(MAX_PARTS, 1), WHOLE_ITEMS]


class RawPromptFields(SamplingFields):
    """prompt: one, or a list of them with an answer each."""

    prompt: str | Ids | PromptObject | Prompts
    _made: list[str | list[Any]] | None = PrivateAttr(None)

    @property
    def given_images(self) -> Sequence[GivenImage]:
        self.raw_prompts()
        return self._sent_images

    def place_images(self, texts: Mapping[int, str], images: Sequence[protocol.Image]) -> None:
        made = self.raw_prompts()
        for one in self._sent_images:
            put = texts[one.number]
            made = [p.replace(one.mark, put) if isinstance(p, str) else p for p in made]
        self._made, self._images = made, images

    def raw_prompts(self) -> list[str | list[Any]]:
        """Each a text, with marks for its images, or a list of texts and ids. Raises FieldError."""
        if self._made is not None:
            return self._made
        given: Any = self.prompt
        alone = not isinstance(given, list) or any(isinstance(item, int) for item in given)
        made: list[str | list[Any]] = []
        for i, one in enumerate([given] if alone else given):
            if isinstance(one, PromptObject):
                one, images = one.marked(f"prompt{'' if alone else f'[{i}]'}.multimodal_data")
                self._sent_images += images
            if isinstance(one, list) and not all(isinstance(item, (int, str)) for item in one):
                raise FieldError("prompt: ids can be mixed with texts only", "prompt")
            if isinstance(one, list) and sum(isinstance(item, str) for item in one) > MAX_TEXTS:
                raise FieldError(f"prompt: at most {MAX_TEXTS} texts among ids", "prompt")
            made.append(one)
        self._made = made
        return made

    def prompt_inputs(self) -> list[protocol.PromptInput]:
        """The prompts for the engine. Raises FieldError."""
        prompts, n = self.raw_prompts(), self.n_choices
        if len(prompts) > MAX_PROMPTS or len(prompts) * n > MAX_CHOICES:
            raise FieldError(f"prompt: at most {MAX_PROMPTS} prompts and {MAX_CHOICES} answers", "prompt")
        return [self._input(prompt) for prompt in prompts]

    @property
    def logged(self) -> Any:
        return self.raw_prompts()

    def _input(self, prompt: str | list[Any]) -> protocol.PromptInput:
        if isinstance(prompt, str):
            return protocol.TextInput(prompt, [image for image in self._images if image.marker in prompt])
        return protocol.MixedInput(list(_parts(prompt)))


def _parts(prompt: list[Any]) -> Iterable[str | list[int]]:
    """The texts, and the ids between them as lists."""
    for is_text, items in groupby(prompt, key=lambda item: isinstance(item, str)):
        if is_text:
            yield from items
        else:
            yield list(items)
