"""The body of llama-server's /infill, as editors send it: a text with a gap at the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from specllama.client import protocol
from specllama.server.dialects.llama_server.completion_request import NativeRequest
from specllama.server.dialects.shared.fields import SMALL, AtMost, Body

MAX_EXTRA, MAX_FILENAME = 1024, 1024


class ExtraChunk(Body):
    """A text from another file. time: when the editor saw it, without effect."""

    text: str
    filename: Annotated[str, Field(max_length=MAX_FILENAME)] = "tmp"
    time: Annotated[Any, SMALL] = None


class InfillRequest(NativeRequest):
    """input_prefix, input_suffix: the text before and after the gap. prompt: the beginning of the filling.
    input_extra: other texts, most important last. id_slot: if 0 or more, a newer request of the same client
    with this number ends this one with the text that it has.
    """

    prompt: str = ""
    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraChunk], AtMost(MAX_EXTRA)] = Field([])
    id_slot: Annotated[int, Field(ge=-1, lt=2**31)] = -1

    @property
    def supersedes(self) -> str:
        """See Service.start."""
        return f"infill {self.id_slot}" if self.id_slot >= 0 else ""

    @property
    def shown(self) -> Any:
        """The prompt as logged."""
        return [self.input_prefix, self.prompt, self.input_suffix]

    def inputs(self) -> Sequence[protocol.PromptInput]:
        extra = [protocol.InfillChunk(chunk.text, chunk.filename) for chunk in self.input_extra]
        return [protocol.Infill(self.input_prefix, self.input_suffix, self.prompt, extra)]
