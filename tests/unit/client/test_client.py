"""How long the client keeps a request's images, with a process that does nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from specllama.client import client as module
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.core.sampling.params import SamplingParams
from specllama.errors import EngineDiedError, UsageError

CHAT = [{"role": "user", "content": "an image"}]


class IdleProcess:
    """An engine process that never answers by itself."""

    def __init__(self, on_message: Callable[[protocol.Message], None], on_end: Any, *_: Any) -> None:
        self.answer, self.end, self.dead = on_message, on_end, EngineDiedError("it ended")

    def start(self, loop: Any) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> EngineClient:
    monkeypatch.setattr(module, "EngineProcess", IdleProcess)
    return EngineClient()


def image() -> protocol.Image:
    return protocol.Image("0" * 64, 1, 1, "/nowhere")


def submitted(client: EngineClient, kind: Any, **more: Any) -> Callable[[], protocol.Image | None]:
    """Submit a request with an image, of which the client alone has a reference then."""
    one = image()
    client.submit(kind(1, protocol.ChatInput(CHAT, images=[one]), **more), lambda _: None)
    return weakref.ref(one)


def is_alive(one: Callable[[], object]) -> bool:
    gc.collect()
    return one() is not None


def answer(client: EngineClient, message: protocol.Message) -> None:
    client._child.answer(message)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "last",
    [
        protocol.Started(1, 5, SamplingParams()),
        protocol.Failed({"kind": "UsageError", "message": "no"}, 1),
    ],
)
def test_images_are_kept_until_the_prompt_was_read(client: EngineClient, last: protocol.Message) -> None:
    one = submitted(client, protocol.Generate)
    assert is_alive(one)
    answer(client, protocol.Queued(1, 5, 1))
    answer(client, protocol.Started(2, 5, SamplingParams()))
    assert is_alive(one)
    answer(client, last)
    assert not is_alive(one)


def test_images_of_questions(client: EngineClient) -> None:
    one = submitted(client, protocol.Render)
    answer(client, protocol.QueriedText(1, "a part", more=True))
    assert is_alive(one)
    answer(client, protocol.QueriedText(1, "the last"))
    assert not is_alive(one)
    one = submitted(client, protocol.CountTokens)
    answer(client, protocol.TokenCount(1, 7))
    assert not is_alive(one)


def test_images_of_a_discarded_request_are_kept_until_the_engine_is_done(client: EngineClient) -> None:
    request = protocol.Generate(1, protocol.TextInput("an image", [image()]))
    one = weakref.ref(request.prompt.images[0])  # type: ignore[union-attr]
    client.submit(request, lambda _: None).discard()
    del request
    assert is_alive(one)
    answer(client, protocol.Started(1, 5, SamplingParams()))
    assert not is_alive(one)


def test_images_go_with_the_process_and_with_a_request_that_cannot_be_sent(client: EngineClient) -> None:
    one = submitted(client, protocol.Generate)
    client._child.end()  # type: ignore[attr-defined]
    assert not is_alive(one)
    with pytest.raises(UsageError):
        submitted(client, protocol.Generate, params={"no": {"JSON"}})
    assert client._images == {}
