"""The real clients of Ollama's API, ollama-python and langchain-ollama, without tools."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import ollama
import pytest
from langchain_ollama import ChatOllama
from pydantic import BaseModel, ConfigDict

from tests.support.serving import QUESTION, Server

NAME = "pydoc-target"
SHORT = {"num_predict": 12, "seed": 5, "temperature": 0}


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pure: bool


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ollama.Client]:
    with ollama.Client(server.url) as one:
        yield one


@pytest.fixture(scope="module")
def model(server: Server) -> Iterator[ChatOllama]:
    one = ChatOllama(
        model=NAME, base_url=server.url, validate_model_on_init=True, num_predict=12, temperature=0,
        num_ctx=4096, seed=5,
    )  # fmt: skip
    yield one
    one._client.close()


class TestOllamaPython:
    def test_models(self, client: ollama.Client) -> None:
        (listed,) = client.list().models
        (running,) = client.ps().models
        assert listed.model == running.model == NAME
        assert listed.modified_at is not None
        assert listed.size == running.size > 0
        shown = client.show(NAME)
        assert shown.modelinfo["general.architecture"] == shown.details.family
        assert "tools" in shown.capabilities
        with pytest.raises(ollama.ResponseError, match="not found") as raised:
            client.show("another")
        assert raised.value.status_code == 404

    def test_chat(self, client: ollama.Client) -> None:
        whole = client.chat(NAME, QUESTION, options=SHORT)
        chunks = list(client.chat(NAME, QUESTION, stream=True, options=SHORT))
        assert "".join(chunk.message.content for chunk in chunks) == whole.message.content != ""
        assert chunks[-1].eval_count == whole.eval_count == 12
        assert whole.done_reason == "length"

    def test_generate(self, client: ollama.Client) -> None:
        whole = client.generate(NAME, "zip", options=SHORT, keep_alive="5m")
        chunks = list(client.generate(NAME, "zip", stream=True, options=SHORT))
        assert "".join(chunk.response for chunk in chunks) == whole.response != ""
        assert client.generate(NAME, "").done_reason == "load"
        assert client.chat(NAME, [], keep_alive=0).done_reason == "unload"

    def test_a_schema(self, client: ollama.Client) -> None:
        whole = client.chat(NAME, QUESTION, format=Verdict.model_json_schema(), options=SHORT)
        assert Verdict.model_validate_json(whole.message.content)

    def test_logprobs(self, client: ollama.Client) -> None:
        whole = client.chat(NAME, QUESTION, logprobs=True, top_logprobs=2, options=SHORT)
        assert "".join(entry.token for entry in whole.logprobs) == whole.message.content
        assert all(len(entry.top_logprobs) == 2 for entry in whole.logprobs)

    def test_errors(self, client: ollama.Client) -> None:
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError, match="does not support thinking") as raised:
                list(client.chat(NAME, QUESTION, think=True, stream=stream))
            assert raised.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="serve with --embeddings MODEL"):
            client.embed(NAME, "x")


class TestLangChain:
    def test_invoke_and_stream(self, model: ChatOllama) -> None:
        whole = model.invoke("What does zip do?")
        assert whole.content
        assert 0 < whole.usage_metadata["output_tokens"] <= 12
        assert whole.response_metadata["done_reason"] in ("stop", "length")
        parts = [chunk.text for chunk in model.stream("What does zip do?")]
        assert "".join(parts) == whole.text

    def test_structured_output(self, model: ChatOllama) -> None:
        verdict = model.with_structured_output(Verdict, method="json_schema").invoke("Is zip pure?")
        assert isinstance(verdict, Verdict)

    def test_a_model_that_is_not_served(self, server: Server) -> None:
        with httpx.HTTPTransport() as transport, pytest.raises(ValueError, match="another"):
            ChatOllama(
                model="another",
                base_url=server.url,
                validate_model_on_init=True,
                sync_client_kwargs={"transport": transport},
            )
