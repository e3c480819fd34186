"""Images in requests of all APIs and their clients, with a tiny model and a projector of random weights."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from PIL import Image as pillow

from tests.support import tiny_mmproj, tinygguf
from tests.support.hub_cache import put
from tests.support.serving import Reply, Server

pytestmark = pytest.mark.usefixtures("vision")


@pytest.fixture(scope="module")
def sees(vision: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    _, folder = vision, tmp_path_factory.mktemp("sees")
    model = tinygguf.gemma3(folder / "m.gguf")
    tiny_mmproj.gemma3(folder / "mmproj-m.gguf")
    with Server(folder, "-m", str(model), "-c", "2048") as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


def png(colour: str = "red") -> str:
    buffer = io.BytesIO()
    pillow.new("RGB", (64, 48), colour).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


RED = png()
URL = f"data:image/png;base64,{RED}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": RED}
TEXT = {"type": "text", "text": "look"}
OPENAI = {"type": "image_url", "image_url": {"url": URL}}
SHORT: dict[str, Any] = {"max_tokens": 3, "temperature": 0}
OLLAMA: dict[str, Any] = {"stream": False, "options": {"num_predict": 3, "temperature": 0}}


def said(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_every_api_gets_the_same_prompt(sees: Server) -> None:
    chat = sees.chat(said(OPENAI, TEXT), **SHORT, verbose=True).json
    n = chat["usage"]["prompt_tokens"]
    prompt = chat["__verbose"]["prompt"]
    assert prompt.count("<__media__>") == 1
    assert prompt.index("<__media__>") < prompt.index("look")
    assert n > sees.chat(said(TEXT), **SHORT).json["usage"]["prompt_tokens"] + tiny_mmproj.SIDE**2
    block = {"type": "image", "source": SOURCE}
    messages = sees.post("/v1/messages", {"messages": said(block, TEXT), **SHORT}).json["usage"]
    assert messages["input_tokens"] + messages["cache_read_input_tokens"] == n
    count = sees.post("/v1/messages/count_tokens", {"messages": said(block, TEXT)})
    assert count.json == {"input_tokens": n}
    items = said({"type": "input_image", "image_url": URL}, {"type": "input_text", "text": "look"})
    responses = sees.post("/v1/responses", {"input": items, "max_output_tokens": 3})
    assert responses.json["usage"]["input_tokens"] == n
    beside = {"role": "user", "content": "look", "images": [RED]}
    assert sees.post("/api/chat", {"messages": [beside], **OLLAMA}).json["prompt_eval_count"] == n
    generated = sees.post("/api/generate", {"prompt": "look", "images": [RED], **OLLAMA})
    assert generated.json["prompt_eval_count"] == n
    prompt = sees.post("/apply-template", {"messages": said(OPENAI, TEXT)}).json["prompt"]
    raw = {"prompt": {"prompt_string": prompt, "multimodal_data": [RED]}, "n_predict": 3}
    assert sees.post("/completion", raw).json["tokens_evaluated"] == n
    raw = {"prompt": raw["prompt"], "max_tokens": 3}
    assert sees.post("/v1/completions", raw).json["usage"]["prompt_tokens"] == n
    answered = [*said(TEXT), {"role": "assistant", "content": [OPENAI]}, *said(TEXT)]
    with_image = sees.chat(answered, **SHORT).json["usage"]["prompt_tokens"]
    answered[1] = {"role": "assistant", "content": ""}
    assert with_image > sees.chat(answered, **SHORT).json["usage"]["prompt_tokens"] + tiny_mmproj.SIDE**2


def test_an_image_that_was_evaluated_is_not_again(sees: Server) -> None:
    blue = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png('blue')}"}}
    first = sees.chat(said(blue, TEXT), **SHORT).json
    answer = {"role": "assistant", "content": first["choices"][0]["message"]["content"]}
    again = {"role": "user", "content": "and now?"}
    usage = sees.chat([*said(blue, TEXT), answer, again], **SHORT).json["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 8


def test_what_lists_say(sees: Server) -> None:
    props = sees.get("/props").json
    assert props["modalities"]["vision"] is True
    assert props["media_marker"] == "<__media__>"
    (model,) = sees.get("/v1/models").json["data"]
    assert model["architecture"]["input_modalities"] == ["text", "image"]
    assert "vision" in sees.post("/api/show", {"model": "m"}).json["capabilities"]
    assert sees.get("/api/v0/models").json["data"][0]["type"] == "vlm"


def test_models_that_are_not_loaded_yet(tmp_path: Path) -> None:
    """Their lists, and a large image that loads one."""
    model, projector = tinygguf.gemma3(tmp_path / "m.gguf"), tiny_mmproj.gemma3(tmp_path / "p.gguf")
    put(tmp_path / "hub", "me/sees", "sees-F32.gguf", model.read_bytes())
    put(tmp_path / "hub", "me/sees", "mmproj-F16.gguf", projector.read_bytes())
    environ = {"SPECLLAMA_MODEL": None, "HF_HUB_CACHE": str(tmp_path / "hub")}
    with Server(tmp_path, "-c", "512", "--models-max", "0", env=environ) as server:
        assert server.get("/props").json["modalities"]["vision"] is False
        name = {"model": "me/sees:F32"}
        assert "vision" in server.post("/api/show", name).json["capabilities"]
        types = {one["id"]: one["type"] for one in server.get("/api/v0/models").json["data"]}
        assert (types["me/sees:F32"], types["pydoc-target"]) == ("vlm", "llm")
        image = {"type": "image_url", "image_url": {"url": RED + " " * (5 << 20)}}
        assert server.chat(said(image), **SHORT, **name).status == 200
        refused = server.chat(said(image), **SHORT, model="pydoc-target")
        assert refused.status == 400
        assert "loaded without a projector" in refused.error["message"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("data:image/png;base64,AAAA", "not an image"),
        (URL[:120], "the image is cut off: the PNG file has no end; send the whole file."),
        ("https://example.org/a.png", "--allow-image-urls"),
        ("file:///etc/passwd", "files of the server"),
    ],
)
def test_bad_images(sees: Server, url: str, problem: str) -> None:
    def message(reply: Reply) -> str:
        assert reply.status == 400
        error = reply.json["error"]
        text: str = error if isinstance(error, str) else error["message"]
        assert problem in text
        assert "The image data you provided does not represent a valid image" in text
        return text

    refused = sees.chat(said(TEXT, {"type": "image_url", "image_url": {"url": url}}), **SHORT)
    assert "messages[0].content[1].image_url" in message(refused)
    assert refused.error["param"] == "messages[0].content[1]"
    block = {"type": "image", "source": {"type": "url", "url": url}}
    assert "messages[0].content[0].image" in message(
        sees.post("/v1/messages", {"messages": said(block), **SHORT})
    )
    message(sees.post("/api/generate", {"prompt": "x", "images": [url], **OLLAMA}))
    raw = {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [url]}, "n_predict": 1}
    message(sees.post("/completion", raw))


def test_a_hundred_images(sees: Server) -> None:
    assert sees.post("/v1/messages/count_tokens", {"messages": said(*[OPENAI] * 100)}).status == 200
    reply = sees.chat(said(*[OPENAI] * 101), **SHORT)
    assert reply.status == 400
    assert "at most 100 images, not 101" in reply.error["message"]


def test_large_bodies(sees: Server) -> None:
    """An image of 6 MB, which a server of a model that reads text only would not read."""
    noise = pillow.frombytes("RGB", (1600, 1200), tiny_mmproj.noise_image(1600, 1200))
    buffer = io.BytesIO()
    noise.save(buffer, "BMP")
    image = {"type": "image_url", "image_url": {"url": base64.b64encode(buffer.getvalue()).decode()}}
    assert len(json.dumps(image)) > 4 << 20
    assert sees.chat(said(image), **SHORT).status == 200
    assert sees.post("/v1/chat/completions", b" " * 33_000_000).status == 413


def test_sdks(sees: Server) -> None:
    with openai.OpenAI(base_url=f"{sees.url}/v1", api_key="x", max_retries=0) as client:
        answer = client.chat.completions.create(model="m", messages=said(TEXT, OPENAI), max_tokens=3)  # type: ignore[arg-type]
        assert answer.choices[0].message.content
        part = {"type": "input_image", "image_url": URL, "detail": "auto"}
        response = client.responses.create(model="m", input=said(part), max_output_tokens=16)  # type: ignore[arg-type]
        assert response.usage is not None
        assert response.usage.input_tokens > tiny_mmproj.SIDE**2
    with anthropic.Anthropic(base_url=sees.url, api_key="x", max_retries=0) as client_:
        block = {"type": "image", "source": SOURCE}
        message = client_.messages.create(model="m", messages=said(block, TEXT), max_tokens=3)  # type: ignore[arg-type]
        assert message.usage.output_tokens == 3
        counted = client_.messages.count_tokens(model="m", messages=said(block, TEXT))  # type: ignore[arg-type]
        usage = message.usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    with ollama.Client(sees.url) as client__:
        turn = {"role": "user", "content": "look", "images": [base64.b64decode(RED)]}
        assert (
            client__.chat("m", [turn], options={"num_predict": 3}).prompt_eval_count == counted.input_tokens
        )


def test_langchain(sees: Server) -> None:
    """Its own form of an image, which each integration writes in its API's."""
    message = HumanMessage([TEXT, {"type": "image", "base64": RED, "mime_type": "image/png"}])  # type: ignore[list-item]
    local = ChatOllama(model="m", base_url=sees.url, num_predict=3)
    models = (
        ChatOpenAI(model="m", base_url=f"{sees.url}/v1", api_key="x", max_completion_tokens=3, max_retries=0),  # type: ignore[arg-type]
        ChatAnthropic(model="m", base_url=sees.url, api_key="x", max_tokens=3, max_retries=0),  # type: ignore[call-arg,arg-type]
        local,
    )
    try:
        counts = [model.invoke([message]).usage_metadata["input_tokens"] for model in models]  # type: ignore[index]
    finally:
        local._client.close()
    assert min(counts) > tiny_mmproj.SIDE**2
    assert max(counts) - min(counts) <= 2, "line breaks between parts"
