"""Images in prompts of the Python API: in which forms they are read, and where they stand."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pillow

from specllama.api.llm import LLM
from specllama.api.outputs import PendingCompletion, PendingRequest
from specllama.api.prompts import ImageSource, PromptSource, conversation, source
from specllama.client import protocol
from specllama.errors import NotFoundError, UsageError
from specllama.images import MAX_IMAGES, MEDIA_MARKER, load_pil

RED, BLUE = (pillow.new("RGB", (4, 3), colour) for colour in ("red", "blue"))
M_RED, M_BLUE = (load_pil(image).marker for image in (RED, BLUE))


def png(image: Any = RED) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def encoded(image: Any = RED) -> str:
    return base64.b64encode(png(image)).decode()


def loaded(given: PromptSource) -> Any:
    return given.with_images(given.prompt_input({}, None))


def content(*parts: Any) -> str:
    prompt = loaded(conversation([{"role": "user", "content": list(parts)}]))
    assert all(image.marker in prompt.messages[0]["content"] for image in prompt.images)
    text: str = prompt.messages[0]["content"]
    return text


def test_forms_of_images(tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(png())
    url = f"data:image/png;base64,{encoded()}"
    for part in (
        RED,
        file,
        {"type": "image", "image": RED},
        {"type": "image_pil", "image_pil": RED},
        {"type": "image", "image": str(file)},
        {"type": "image", "image": url},
        {"type": "image", "image": png()},
        {"type": "image", "image": np.asarray(RED)},
        np.asarray(RED),
        png(),
        bytearray(png()),
        memoryview(png()),
        {"type": "image", "path": str(file)},
        {"type": "image", "path": file},
        {"type": "image", "url": url},
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded()}},
    ):
        assert content(part) == M_RED, part


def test_where_images_stand() -> None:
    assert content("a", RED, {"type": "text", "text": "b"}, "c", BLUE) == f"a{M_RED}b\nc{M_BLUE}"


def test_messages_without_images_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "thinking"}]}]
    given = conversation(messages)
    assert given.images == ()
    assert given.messages == messages


def test_prompts_with_images() -> None:
    given = source({"prompt": "what?", "multi_modal_data": {"image": RED}})
    assert given.text == f"{MEDIA_MARKER}what?"
    assert loaded(given).text == f"{M_RED}what?"
    prompt = f"{MEDIA_MARKER} or {MEDIA_MARKER}?"
    given = source({"prompt": prompt, "multi_modal_data": {"image": [BLUE, RED]}})
    assert loaded(given).text == f"{M_BLUE} or {M_RED}?"
    assert [image.marker for image in loaded(given).images] == [M_BLUE, M_RED]
    assert loaded(source({"prompt": "a", "multi_modal_data": {}})) == protocol.TextInput("a")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([RED], "multi_modal_data is"),
        ({"audio": 1}, "multi_modal_data is"),
        ({"image": [RED] * 3}, "2 markers <__media__> for 3 images"),
        ({"image": [5, RED]}, "image 1: an image cannot be 'int'"),
        ({"image": [None, RED]}, "image 1: an image cannot be 'NoneType'"),
        ({"image": [np.zeros((2, 2)), RED]}, "image 1: an array of float64 of the shape .* is no image"),
    ],
)
def test_data_that_are_no_images(data: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        loaded(source({"prompt": MEDIA_MARKER * 2, "multi_modal_data": data}))
    with pytest.raises(NotFoundError, match=r"'nowhere.png' cannot be read"):
        loaded(source({"prompt": MEDIA_MARKER, "multi_modal_data": {"image": "nowhere.png"}}))


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image"}, "there is no image in it"),
        ({"type": "image_url", "image_url": {}}, "there is no image in it"),
        ({"type": "image_url", "image_url": "https://example.org/a.png"}, "not read here"),
        ({"type": "image_url", "image_url": "file:///etc/hosts"}, "not read here"),
        ({"type": "image_url", "image_url": "data:image/png,x"}, "not in base64"),
        ({"type": "image", "image": b"no"}, "not an image"),
        ({"type": "image", "image": None}, "there is no image in it"),
        ({"type": "image", "image": 5}, "an image cannot be 'int'"),
        ({"type": "image", "image": np.zeros((3, 2, 2), np.uint8)}, "is no image"),
        (b"no", "not an image"),
        (None, "must be a text or an image, not None"),
        ([RED], "must be a text or an image, not"),
    ],
)
def test_parts_that_are_no_images(part: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as error:
        content("a", part)
    assert "messages[0].content[1]" in error.value.message


def test_parts_of_unknown_types_are_refused_with_images_and_without() -> None:
    for first in (RED, "a", {"type": "text", "text": "a"}):
        with pytest.raises(UsageError, match=r"content\[1\]\.type must be one of text, .*, not 'zork'"):
            conversation([{"role": "user", "content": [first, {"type": "zork"}]}])
    conversation([{"role": "user", "content": [{"text": "a"}, {"type": "thinking", "thinking": "b"}]}])


def test_the_number_of_images() -> None:
    with pytest.raises(UsageError, match="at most 100"):
        content(*[RED] * (MAX_IMAGES + 1))


class Client:
    """Takes requests and answers none."""

    def __init__(self) -> None:
        self.requests: list[protocol.Generate] = []

    def next_id(self) -> int:
        return len(self.requests)

    def submit(self, request: protocol.Generate, _deliver: Any) -> None:
        self.requests.append(request)


def pending(given: PromptSource) -> PendingRequest:
    asked = protocol.Generate(-1, given.prompt_input({}, None))
    return PendingRequest("0", given, [PendingCompletion(i, asked, lambda _: None) for i in range(2)])


def test_images_are_decoded_when_the_model_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    request, client = pending(conversation([{"role": "user", "content": ["a", RED]}])), Client()

    problem = UsageError("reads text only")
    with monkeypatch.context() as patch:
        patch.setattr(ImageSource, "load", lambda _self: pytest.fail("decoded"))
        with pytest.raises(UsageError, match="reads text only"):
            request.load_images(lambda: problem)
    request.load_images(lambda: None)
    request.submit(client, lambda _completion, _message: None)  # type: ignore[arg-type]
    for one, asked in zip(request.completions, client.requests, strict=True):
        assert asked.chat is not None
        assert asked.chat.messages[0]["content"] == f"a{M_RED}"
        assert len(asked.chat.images) == 1
        assert one.message.id == asked.id
        assert one.message.chat is None, "the images go when the engine has read them"
    pending(PromptSource(text="a")).load_images(lambda: problem)


def test_a_text_model_refuses_new_images_alone() -> None:
    """As in the server."""
    problem = UsageError("reads text only")
    seen, said = {"role": "user", "content": ["a", RED, "b"]}, {"role": "user", "content": "q"}
    answer = {"role": "assistant", "content": [RED]}
    result = {"role": "tool", "content": ["r", RED], "tool_call_id": "a"}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    words = "[image left out: it cannot be read here]"

    def asked(*messages: Any) -> list[str]:
        given = conversation(messages)
        prompt = given.with_images(given.prompt_input({}, None), problem)
        assert isinstance(prompt, protocol.ChatInput)
        assert not prompt.images
        return [message["content"] for message in prompt.messages]

    assert asked(seen, answer, said) == [f"a\n{words}\nb", words, "q"]
    assert asked(said, called, result, seen)[2:] == [f"r\n{words}", f"a\n{words}\nb"]
    assert asked(seen, answer) == [f"a\n{words}\nb", words]
    for given in (conversation([said, seen]), source({"prompt": "a", "multi_modal_data": {"image": RED}})):
        with pytest.raises(UsageError, match="reads text only"):
            given.with_images(given.prompt_input({}, None), problem)


def test_embedding_models_read_text_only() -> None:
    given = source({"prompt": "a", "multi_modal_data": {"image": RED}})
    with pytest.raises(UsageError, match="reads text only"):
        LLM.__new__(LLM)._embed([given], None, False, True)
