"""The real clients: openai's, synchronous and asynchronous, and LangChain's chat model."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tests.support.serving import QUESTION, Server


class Verdict(BaseModel):
    name: Literal["zip", "open"]
    pure: bool


@pytest.fixture(scope="module")
def client(exact: Server):
    with openai.OpenAI(base_url=f"{exact.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def test_models(client: openai.OpenAI) -> None:
    (only,) = client.models.list()
    assert only.id == "pydoc-target"
    assert client.models.retrieve("pydoc-target").created == only.created
    with pytest.raises(openai.NotFoundError, match="pydoc-target"):
        client.models.retrieve("gpt-4o")


def test_unsupported_requests_are_not_retried(client: openai.OpenAI, exact: Server) -> None:
    """The SDK repeats requests after other 5xx."""
    sound = ("a.wav", b"RIFF")
    with pytest.raises(openai.InternalServerError, match="no sound") as caught:
        client.with_options(max_retries=2).audio.transcriptions.create(model="pydoc-target", file=sound)
    assert caught.value.status_code == 501
    name = 'specllama_http_requests_total{path="/v1/audio/transcriptions",status="501"}'
    assert exact.samples()[name] == 1


def test_a_model_that_writes_texts_makes_no_vectors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="serve with --embeddings MODEL"):
        client.embeddings.create(model="pydoc-target", input="zip")


def test_chat_and_its_stream_are_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "pydoc-target", "messages": QUESTION, "max_tokens": 40, "seed": 5}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content
    assert whole.choices[0].message.role == "assistant"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_stream_helper(client: openai.OpenAI) -> None:
    grammar = {"grammar": 'root ::= "a text of " ("one" | "two") " words"'}  # the helper takes no cut text
    with client.chat.completions.stream(
        model="pydoc-target", messages=QUESTION, logprobs=True, top_logprobs=2, extra_body=grammar
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content
    assert final.choices[0].message.content in ("a text of one words", "a text of two words")
    tokens = [entry.token for entry in final.choices[0].logprobs.content]
    assert "".join(tokens) == final.choices[0].message.content


def test_parse_with_a_schema(client: openai.OpenAI) -> None:
    completion = client.chat.completions.parse(
        model="pydoc-target", messages=QUESTION, response_format=Verdict, max_tokens=40
    )
    assert isinstance(completion.choices[0].message.parsed, Verdict)
    with (
        client.chat.completions.stream(
            model="pydoc-target", messages=QUESTION, response_format=Verdict, max_tokens=40
        ) as stream,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # pydantic's, about the client's own types
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Verdict)


def test_completions(client: openai.OpenAI) -> None:
    asked = {"model": "pydoc-target", "prompt": ["def read(", "import "], "max_tokens": 12, "seed": 1}
    whole = client.completions.create(**asked, n=2, logprobs=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in whole.choices}) == 4
    assert all(len(choice.logprobs.tokens) == 12 for choice in whole.choices)
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [whole.choices[0].text, whole.choices[2].text]


@pytest.mark.parametrize(
    ("fields", "error", "needle"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, "pydoc-target"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"messages": [{"role": "user", "content": "zip " * 4000}]}, openai.BadRequestError, "context"),
    ],
)
def test_the_client_raises_its_own_errors(client: openai.OpenAI, fields, error, needle) -> None:
    with pytest.raises(error, match=needle):
        client.chat.completions.create(**{"model": "pydoc-target", "messages": QUESTION, **fields})


def test_many_at_once_in_an_event_loop(server: Server) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:

            async def one(seed: int, stream: bool) -> str:
                asked = {"model": "pydoc-target", "messages": QUESTION, "max_tokens": 15, "seed": seed}
                if not stream:
                    completion = await client.chat.completions.create(**asked)
                    return completion.choices[0].message.content
                chunks = await client.chat.completions.create(**asked, stream=True)
                return "".join([c.choices[0].delta.content or "" async for c in chunks])

            texts = await asyncio.gather(*(one(seed, seed % 2 == 0) for seed in range(12)))
            assert all(texts)
            assert len(set(texts)) > 2

    asyncio.run(main())


@pytest.fixture(scope="module")
def model(exact: Server, chat_openai: Any):
    return chat_openai(exact, max_tokens=30, seed=5)


class TestLangChain:
    @pytest.mark.filterwarnings("default")
    def test_invoke_and_stream(self, model) -> None:
        answer = model.invoke("What does shutil.copytree do?")
        assert answer.content
        assert answer.usage_metadata["output_tokens"] > 0
        parts = list(model.stream("What does shutil.copytree do?"))
        assert "".join(part.content for part in parts) == answer.content

    @pytest.mark.filterwarnings("default")
    def test_structured_output(self, model) -> None:
        verdict = model.with_structured_output(Verdict, method="json_schema").invoke("zip?")
        assert isinstance(verdict, Verdict)
