"""/v1/responses on the wire and through OpenAI's SDK and LangChain, with the embedded pair."""

from __future__ import annotations

import json
import warnings
from typing import Any, Literal

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.support.codex import codex_request
from tests.support.serving import Reply, Server

THINK = 'root ::= "<think>\\n2 is\\nsmall\\n</think>\\n\\nIt is 2."'
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Verdict(BaseModel):
    name: Literal["zip", "open"]
    pure: bool


@pytest.fixture(scope="module")
def client(exact: Server):
    with openai.OpenAI(base_url=f"{exact.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def respond(server: Server, input_: Any = "What does zip do?", **fields: Any) -> Reply:
    return server.post("/v1/responses", {"input": input_, **fields})


def events(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    assert reply.headers["content-type"].startswith("text/event-stream")
    datas = [frame.split("\ndata: ")[1] for frame in reply.body.decode().split("\n\n")[:-1]]
    return [json.loads(data) for data in datas]


class TestWire:
    def test_the_whole_is_the_fold_of_the_stream(self, exact: Server) -> None:
        asked = {"seed": 3, "max_output_tokens": 20, "top_logprobs": 2, "ignore_eos": True}
        streamed, whole = events(respond(exact, stream=True, **asked)), respond(exact, **asked).json
        for event in streamed:
            EVENTS.validate_python(event)
        assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
        last = streamed[-1]["response"]
        assert last["status"] == whole["status"]
        ((shown,), (item,)) = last["output"][0]["content"], whole["output"][0]["content"]
        assert shown == item
        assert (
            shown["text"] == "".join(e["delta"] for e in streamed if e["type"].endswith("text.delta")) != ""
        )
        assert len(shown["logprobs"][0]["top_logprobs"]) == 2
        assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == 20
        assert whole["timings"]["predicted_n"] == 20
        assert whole["seed"] == 3

    def test_the_same_text_as_chat(self, exact: Server) -> None:
        conversation = [{"role": "system", "content": "s"}, {"role": "user", "content": "What does zip do?"}]
        chat = exact.chat(conversation, seed=3, max_tokens=12).json
        response = respond(exact, instructions="s", seed=3, max_output_tokens=12).json
        assert response["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}

    def test_reasoning_is_an_item(self, exact: Server) -> None:
        response = Response.model_validate(respond(exact, grammar=THINK).json)
        reasoning, message = response.output
        assert reasoning.type == "reasoning"
        assert reasoning.content is not None
        assert reasoning.content[0].text == "2 is\nsmall"
        assert response.output_text == "It is 2."
        assert response.usage is not None
        assert response.usage.output_tokens_details.reasoning_tokens > 0
        again = respond(exact, [{"role": "user", "content": "x"}, *[i.to_dict() for i in response.output]])
        assert again.status == 200
        assert message.type == "message"

    @pytest.mark.parametrize("method", ["GET", "DELETE"])
    def test_responses_are_not_stored(self, server: Server, method: str) -> None:
        id_ = respond(server, max_output_tokens=1).json["id"]
        reply = server.ask(method, f"/v1/responses/{id_}")
        assert reply.status == 404
        assert "not stored" in reply.error["message"]
        assert reply.error["type"] == "not_found_error"

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        ("fields", "status", "needle"),
        [
            ({"previous_response_id": "resp_1"}, 400, "not stored"),
            ({"model": "gpt-4o"}, 404, "pydoc-target"),
            ({"input": "zip " * 4000}, 400, "context"),
            ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "without a projector"),
        ],
    )
    def test_errors_before_the_first_byte_have_a_status(
        self, exact: Server, stream: bool, fields, status, needle
    ) -> None:
        reply = exact.post("/v1/responses", {"input": "x", "stream": stream, **fields})
        assert reply.status == status
        assert needle in reply.error["message"]

    def test_a_first_request_of_codex(self, server: Server) -> None:
        asked = codex_request("pydoc-target") | {"max_output_tokens": 4}
        stream_events = events(server.post("/v1/responses", asked))
        assert stream_events[-1]["type"] in ("response.incomplete", "response.completed")
        line = server.wait_for("left out tools")
        assert "custom, web_search, image_generation, tool_search" in line


class TestClient:
    def test_create(self, client: openai.OpenAI) -> None:
        response = client.responses.create(
            model="pydoc-target", input="What does zip do?", max_output_tokens=9, metadata={"a": "b"}
        )
        assert response.output_text
        assert response.metadata == {"a": "b"}
        assert response.usage is not None
        assert response.usage.input_tokens_details.cached_tokens >= 0
        assert 0 < response.usage.output_tokens <= 9
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens

    def test_the_stream_helper(self, client: openai.OpenAI) -> None:
        grammar = {"grammar": 'root ::= "a text of " ("one" | "two") " words"'}
        with client.responses.stream(model="pydoc-target", input="x", extra_body=grammar) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert final.status == "completed"
        assert snapshots[-1] == final.output_text
        assert final.output_text in ("a text of one words", "a text of two words")

    def test_parse_and_stream_a_schema(self, client: openai.OpenAI) -> None:
        asked: dict[str, Any] = {"model": "pydoc-target", "input": "zip?", "text_format": Verdict}
        assert isinstance(client.responses.parse(**asked).output_parsed, Verdict)
        with client.responses.stream(**asked) as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic's, about the client's own types
            assert isinstance(stream.get_final_response().output_parsed, Verdict)

    def test_json_objects(self, client: openai.OpenAI) -> None:
        response = client.responses.create(
            model="pydoc-target", input="zip?", text={"format": {"type": "json_object"}}, max_output_tokens=60
        )
        assert response.output_text.startswith("{")

    def test_stored_responses(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="not stored"):
            client.responses.retrieve("resp_1")
        with pytest.raises(openai.NotFoundError, match="not stored"):
            client.responses.delete("resp_1")
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(model="pydoc-target", input="x", previous_response_id="resp_1")


WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CLOCK: dict[str, Any] = {"type": "function", "name": "clock", "parameters": None}


class TestTools:
    def test_an_agent_that_returns_the_output_as_input(self, tools_client: openai.OpenAI) -> None:
        """Three turns with calls, then one with text only."""
        history: list[Any] = [{"role": "user", "content": "weather?"}]
        choices: list[Any] = ["required", {"type": "function", "name": "clock"}, "required", "none"]
        for choice in choices:
            answer = tools_client.responses.create(
                model="pydoc-target", input=history, tools=[WEATHER, CLOCK], tool_choice=choice,
                parallel_tool_calls=False, max_output_tokens=40, include=["reasoning.encrypted_content"],
            )  # fmt: skip
            assert answer.usage is not None
            if len(history) > 1:  # only what is new is evaluated
                assert answer.usage.input_tokens - answer.usage.input_tokens_details.cached_tokens < 60
            history += [item.to_dict() for item in answer.output]
            calls = [item for item in answer.output if item.type == "function_call"]
            assert len(calls) == (choice != "none")
            for call in calls:
                assert answer.status == "completed"
                assert call.id != call.call_id
                if call.name == "weather":
                    assert json.loads(call.arguments)["city"] in ("Rome", "Oslo")
                else:
                    assert (call.name, call.arguments) == ("clock", "{}")
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": "fine"})
        assert answer.output[-1].type == "message"

    def test_the_stream_helper_with_calls(self, tools_client: openai.OpenAI) -> None:
        with tools_client.responses.stream(
            model="pydoc-target", input="weather?", tools=[WEATHER], tool_choice="required",
            parallel_tool_calls=False, max_output_tokens=40,
        ) as stream:  # fmt: skip
            deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        (call,) = final.output
        assert call.type == "function_call"
        assert "".join(deltas) == call.arguments
        assert call.parsed_arguments["city"] in ("Rome", "Oslo")

    def test_calls_in_a_namespace(self, tools_client: openai.OpenAI) -> None:
        inside = {"type": "namespace", "name": "mcp__sky", "description": "Sky.", "tools": [WEATHER]}
        answer = tools_client.responses.create(
            model="pydoc-target", input="weather?", tools=[inside, CLOCK],
            tool_choice={"type": "function", "name": "weather"}, max_output_tokens=60,
        )  # fmt: skip
        call = answer.output[0]
        assert call.type == "function_call"
        assert (call.namespace, call.name) == ("mcp__sky", "weather")
        again = tools_client.responses.create(
            model="pydoc-target", tools=[inside, CLOCK], max_output_tokens=4, tool_choice="none",
            input=[
                {"role": "user", "content": "weather?"},
                call.to_dict(),
                {"type": "function_call_output", "call_id": call.call_id, "output": "fine"},
            ],
        )  # fmt: skip
        assert again.output[0].type == "message"

    def test_a_call_that_is_cut_off(self, tools_client: openai.OpenAI) -> None:
        answer = tools_client.responses.create(
            model="pydoc-target", input="x", tools=[WEATHER], tool_choice="required", max_output_tokens=12
        )
        assert (answer.status, answer.output[-1].status) == ("incomplete", "incomplete")
        items = [item.to_dict() for item in answer.output]
        history = [{"role": "user", "content": "x"}, *items, {"role": "user", "content": "again"}]
        assert tools_client.responses.create(model="pydoc-target", input=history, max_output_tokens=2).output


@pytest.fixture(scope="module")
def tools_client(server: Server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


@pytest.fixture(scope="module")
def model(server: Server, chat_openai: Any):
    return chat_openai(server, max_tokens=120, use_responses_api=True)


@pytest.mark.filterwarnings("default")
class TestLangChain:
    def test_invoke_and_stream(self, model) -> None:
        bound = model.bind(extra_body={"ignore_eos": True})
        answer = bound.invoke("What does zip do?")
        assert answer.text
        assert answer.usage_metadata["output_tokens"] == 120
        assert answer.response_metadata["status"] == "incomplete"
        parts = list(bound.stream("What does zip do?"))
        assert "".join(part.text for part in parts)
        assert sum((part.usage_metadata or {}).get("output_tokens", 0) for part in parts) == 120

    def test_structured_output(self, model) -> None:
        for method in ("json_schema", "function_calling"):
            verdict = model.with_structured_output(Verdict, method=method, strict=True).invoke("zip?")
            assert isinstance(verdict, Verdict), method

    def test_an_agent_loop(self, model) -> None:
        def weather(city: Literal["Rome", "Oslo"]) -> str:
            """The weather of a city."""
            return f"fine in {city}"

        from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage

        bound = model.bind_tools([weather], tool_choice="any", parallel_tool_calls=False, strict=True)
        history: list[Any] = [HumanMessage("weather?")]
        for turn in range(3):
            if turn == 1:
                answer = AIMessageChunk(content=[])
                for part in bound.stream(history):
                    answer += part
            else:
                answer = bound.invoke(history)
            (call,) = answer.tool_calls
            history += [answer, ToolMessage(weather(**call["args"]), tool_call_id=call["id"])]
        assert model.bind_tools([weather], tool_choice="none").invoke(history).text
