"""A request between its message and the engine: the checked and prepared parts, and its owner."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specllama.client import protocol
from specllama.core.sampling.params import SamplingParams
from specllama.errors import SpecllamaError, UsageError
from specllama.worker.prompts import Prompt

Send = Callable[[protocol.Message], None]


@dataclass(frozen=True, slots=True)
class Accepted:
    """A request whose parameters have been checked. received: running_time."""

    message: protocol.Generate
    params: SamplingParams
    received: float

    @property
    def choices(self) -> list[protocol.Choice]:
        """Its answers, the first one included."""
        message, seed = self.message, self.params.seed
        assert seed is not None
        return [protocol.Choice(message.id, message.turn, seed), *message.choices]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is made of a request's texts. tag: that closes the reasoning which the prompt opens, "" for none;
    grammar: Lark of its tool calls, None without; schema: of the text, as its grammar uses it, None without;
    notes: what these do not enforce.
    """

    prompt: Prompt
    tag: str
    grammar: str | None
    schema: str | None
    notes: Sequence[str]


@contextlib.contextmanager
def blaming(param: str) -> Iterator[None]:
    """Errors raised inside that name no parameter name this one."""
    try:
        yield
    except UsageError as error:
        error.details.setdefault("param", param)
        raise


def cache_scope(message: protocol.Generate) -> str:
    """Those whose caches a request may reuse."""
    if not message.reuse:
        return f"\0{message.id}"  # no owner's
    return "" if message.share_cache else message.owner


def limited(seconds: float | None, message: protocol.Generate) -> float:
    return math.inf if seconds is None or message.warm else seconds


def choice_ids(message: protocol.Message) -> list[int]:
    """The ids of the further answers that a message asks for."""
    return [choice.id for choice in message.choices] if isinstance(message, protocol.Generate) else []


def refuse(send: Send, error: SpecllamaError, *ids: int | None) -> None:
    """Send an error to the clients that wait for these ids."""
    for id_ in ids:
        send(protocol.Failed(error.to_dict(), id_))


@contextlib.contextmanager
def refusing(send: Send, message: protocol.Message) -> Iterator[None]:
    """Send the errors within to those who wait for an answer to a message."""
    try:
        yield
    except SpecllamaError as error:
        refuse(send, error, getattr(message, "id", None), *choice_ids(message))
