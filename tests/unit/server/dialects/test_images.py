"""Images in the prompts of all APIs: where their markers stand, and what is refused before any is decoded."""

from __future__ import annotations

from typing import Any

import pytest

from specllama.client.protocol import ChatInput, Image, TextInput
from specllama.images import MEDIA_MARKER
from specllama.server.dialects.anthropic import CountRequest, MessagesRequest
from specllama.server.dialects.llama_server.completion import NativeRequest
from specllama.server.dialects.ollama import OllamaChatRequest, OllamaGenerateRequest
from specllama.server.dialects.openai.responses.request import ResponsesRequest
from specllama.server.dialects.openai.routes import ChatRequest, CompletionRequest
from specllama.server.dialects.shared.fields import FieldError, checked

DATA = "data:image/png;base64,aGk="
MODELS: dict[str, Any] = {
    "chat": ChatRequest, "responses": ResponsesRequest, "messages": MessagesRequest, "count": CountRequest,
    "ollama": OllamaChatRequest, "generate": OllamaGenerateRequest, "native": NativeRequest,
    "completions": CompletionRequest,
}  # fmt: skip
PART = {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def said(*parts: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": list(parts), **more}


def numbered(i: int) -> Image:
    return Image(f"{i:064x}"[::-1], 1, 1, "")


def marker(i: int) -> str:
    return numbered(i).marker


def placed(api: str, **body: Any) -> Any:
    """The prompt of a body whose images are decoded: numbered from 0, in their order."""
    more = {"max_tokens": 5} if api == "messages" else {}
    read = checked(MODELS[api], {**more, **body})
    given = read.given_images
    assert not [one for one in given if one.problem]
    images = [numbered(i) for i in range(len(given))]
    read.place_images({one.number: image.marker for one, image in zip(given, images, strict=True)}, images)
    prompt = read.chat_input({}) if api == "count" else read.generations({}, {})[0].prompt
    assert prompt.images == images
    return prompt


def contents(prompt: ChatInput) -> list[str]:
    return [message["content"] for message in prompt.messages]


@pytest.mark.parametrize(
    ("parts", "content"),
    [
        ([PART], "M0"),
        ([text("a"), PART], "aM0"),
        ([PART, text("a")], "M0a"),
        ([text("a"), PART, text("b"), text("c"), PART], "aM0b\ncM1"),
        ([PART, PART], "M0M1"),
        ([text("a\n"), PART, text("\nb")], "a\nM0\nb"),
        ([text(""), PART, text("a")], "M0a"),
    ],
)
def test_nothing_stands_between_a_text_and_an_image(parts: list[Any], content: str) -> None:
    """As llama-server joins them."""
    expected = content.replace("M0", marker(0)).replace("M1", marker(1))
    assert contents(placed("chat", messages=[said(*parts)])) == [expected]
    assert contents(placed("messages", messages=[said(*parts)])) == [expected]
    assert contents(placed("responses", input=[said(*parts)])) == [expected]


FORMS: list[dict[str, Any]] = [
    {"type": "image_url", "image_url": DATA},
    {"type": "image_url", "image_url": {"url": "aGk="}},
    {"type": "input_image", "image_url": DATA, "detail": "auto"},
    {"type": "computer_screenshot", "image_url": DATA},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
    {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "image", "image": DATA},
]


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "count", "ollama"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms_of_images(api: str, form: dict[str, Any]) -> None:
    turns = "input" if api == "responses" else "messages"
    prompt = placed(api, **{turns: [said(text("look"), form)]})
    assert contents(prompt) == [f"look{marker(0)}"]


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "ollama"])
def test_images_next_to_a_content_stand_before_it(api: str) -> None:
    turns = "input" if api == "responses" else "messages"
    beside = {"role": "user", "content": "look", "images": ["aGk=", {"image_url": {"url": DATA}}]}
    assert contents(placed(api, **{turns: [beside]})) == [f"{marker(0)}{marker(1)}look"]


def test_images_in_results() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    result = {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [text("see"), {"type": "image", "source": source}],
    }
    turns = [said(text("q")), said(call, role="assistant"), said(result, text("and"), PART)]
    assert contents(placed("messages", messages=turns))[2:] == [f"see{marker(0)}", f"and{marker(1)}"]
    items = [
        said(text("q")),
        {"type": "computer_call", "call_id": "a", "action": {}},
        {
            "type": "computer_call_output",
            "call_id": "a",
            "output": {"type": "computer_screenshot", "image_url": DATA},
        },
    ]
    assert contents(placed("responses", input=items))[2:] == [marker(0)]
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        said(text("q")),
        {"role": "assistant", "tool_calls": [called]},
        said(PART, role="tool", tool_call_id="a"),
    ]
    assert contents(placed("chat", messages=chat))[2:] == [marker(0)]


WORDS = "[image left out: it cannot be read here]"


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "count", "ollama"])
def test_images_in_answers(api: str) -> None:
    """As in llama-server; with a model that reads text only they never refuse the request."""
    turns = "input" if api == "responses" else "messages"
    asked, answered = said(text("q"), PART), said(text("so"), PART, role="assistant", images=["aGk="])
    prompt = placed(api, **{turns: [asked, answered, said(text("q"), PART)]})
    assert contents(prompt) == [f"q{marker(0)}", f"{marker(1)}so{marker(2)}", f"q{marker(3)}"]
    more = {"max_tokens": 5} if api == "messages" else {}
    body = checked(MODELS[api], {**more, turns: [asked, answered, said(text("q"))]})
    body.refuse_images("")
    chat = body.chat_input({}) if api == "count" else body.generations({}, {})[0].prompt
    assert contents(chat) == [f"q\n{WORDS}", f"{WORDS}so{WORDS}", "q"]


def test_images_that_are_words() -> None:
    """Of an answer that is continued, and of the system's text of Messages."""
    prompt = placed("chat", messages=[said(text("be"), PART, role="system"), said(text("q"))])
    assert contents(prompt) == [f"be{marker(0)}", "q"]
    prompt = placed("messages", system=[text("be"), PART], messages=[said(text("q"))])
    assert contents(prompt) == [f"be\n{WORDS}", "q"]
    begun = placed("chat", messages=[said(text("q"), PART), said(text("so"), PART, role="assistant")])
    assert begun.prefix == f"so{WORDS}"
    assert len(begun.images) == 1


@pytest.mark.parametrize("api", ["chat", "responses", "messages", "ollama"])
def test_a_detail_is_named(api: str) -> None:
    def ignored(detail: str) -> tuple[str, ...]:
        more = {"max_tokens": 5} if api == "messages" else {}
        parts = [
            {"type": "image_url", "image_url": {"url": DATA, "detail": detail}},
            {"type": "input_image", "image_url": DATA, "detail": detail},
        ]
        turns = "input" if api == "responses" else "messages"
        fields: tuple[str, ...] = checked(MODELS[api], {**more, turns: [said(*parts)]}).ignored_fields
        return fields

    of_url, of_part = sorted(ignored("low"), reverse=True, key=lambda path: "image_url" in path)
    assert of_url.endswith("[].image_url.detail"), "the first place that may have one"
    assert of_part == f"{'input' if api == 'responses' else 'messages'}[].content[].detail"
    assert ignored("auto") == ()


@pytest.mark.parametrize("api", ["native", "completions", "chat"])
def test_images_as_older_llama_servers_read_them(api: str) -> None:
    least: dict[str, Any] = {"messages": [said(text("q"))]} if api == "chat" else {"prompt": "[img-1]"}
    with pytest.raises(FieldError, match="image_data is not supported: images go in a prompt"):
        checked(MODELS[api], {**least, "image_data": [{"id": 1, "data": "aGk="}]})
    assert checked(MODELS[api], {**least, "image_data": []}).ignored_fields == ()


def test_prompts_without_a_conversation() -> None:
    prompt = placed("generate", prompt="look", images=["aGk=", "aGk="])
    assert contents(prompt) == [f"{marker(0)}{marker(1)}look"]
    assert placed("generate", prompt="look", images=["aGk="], raw=True).text == f"{marker(0)}look"
    given = {"prompt_string": f"a{MEDIA_MARKER}b {MEDIA_MARKER}", "multimodal_data": ["aGk=", "aGk="]}
    for api in ("native", "completions"):
        assert placed(api, prompt=given).text == f"a{marker(0)}b {marker(1)}"


@pytest.mark.parametrize("model", [NativeRequest, CompletionRequest])
def test_several_raw_prompts(model: Any) -> None:
    given = {"prompt_string": f"a\n{MEDIA_MARKER}\nb", "multimodal_data": ["aGk="]}
    read = checked(model, {"prompt": [given, "c", [1, 2], {"prompt_string": MEDIA_MARKER}]})
    (image,) = read.given_images
    assert image.param == "prompt[0].multimodal_data"
    read.place_images({image.number: marker(3)}, [numbered(3)])
    first, second, third, fourth = (one.prompt for one in read.generations({}, {}))
    assert first == TextInput(f"a\n{marker(3)}\nb", [numbered(3)])
    assert second == TextInput("c")
    assert third.parts == [[1, 2]]
    assert fourth == TextInput(MEDIA_MARKER), "without images it is a text"
    assert read.logged[0] == f"a\n{marker(3)}\nb"


@pytest.mark.parametrize(
    ("prompt", "data", "problem"),
    [
        ("a", ["aGk="], "0 markers"),
        (MEDIA_MARKER * 2, ["aGk="], "2 markers <__media__>, and 1 image"),
        ([1, 2], ["aGk="], "not ids"),
    ],
)
def test_markers_without_images(prompt: Any, data: list[str], problem: str) -> None:
    body = checked(NativeRequest, {"prompt": {"prompt_string": prompt, "multimodal_data": data}})
    with pytest.raises(FieldError, match=problem) as error:
        _ = body.given_images
    assert error.value.details["param"] == "prompt.multimodal_data"


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image_url"}, "there is no image"),
        ({"type": "image_url", "image_url": {}}, "there is no image"),
        ({"type": "input_image", "file_id": "file-1"}, "no files are stored here"),
        ({"type": "image_file", "image_file": {"file_id": "f"}}, "no files are stored here"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "no files are stored here"),
    ],
)
def test_parts_without_an_image(part: dict[str, Any], problem: str) -> None:
    (given,) = checked(ChatRequest, {"messages": [said(part)]}).given_images
    assert problem in given.problem
    assert given.param == "messages[0].content[0]"


@pytest.mark.parametrize("part", [{"image_url": 5}, {"image_url": {"url": 5}}, {"image_url": [DATA]}])
def test_parts_of_a_wrong_form(part: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="image_url"):
        checked(ChatRequest, {"messages": [said({"type": "image_url", **part})]})


def test_a_text_model_is_told_apart_by_what_would_help() -> None:
    body = checked(ChatRequest, {"messages": [said(PART)]})
    with pytest.raises(
        FieldError, match=r"messages\[0\].content\[0\].image_url: could not process image: use it\."
    ):
        body.refuse_images("use it")
    for model, fields in (
        (OllamaGenerateRequest, {"images": ["aGk="]}),
        (NativeRequest, {"prompt": {"prompt_string": MEDIA_MARKER, "multimodal_data": ["aGk="]}}),
        (CompletionRequest, {"prompt": [{"prompt_string": MEDIA_MARKER, "multimodal_data": ["aGk="]}]}),
    ):
        with pytest.raises(FieldError, match=r"\[0\]: could not process image"):
            checked(model, fields).refuse_images("")


def test_a_gap_has_no_images() -> None:
    with pytest.raises(FieldError, match="images"):
        checked(OllamaGenerateRequest, {"prompt": "a", "suffix": "b", "images": ["aGk="]})
    given = {"prompt_string": MEDIA_MARKER, "multimodal_data": ["aGk="]}
    with pytest.raises(FieldError, match="suffix"):
        placed("completions", prompt=given, suffix="b")
