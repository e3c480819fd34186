"""Tools with the real clients, openai's and LangChain's, and a model that was never taught to call tools:
whatever is right here is right by the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.support.serving import Server

MODEL = "pydoc-target"
ASKED = [{"role": "user", "content": "Is it raining in Paris, and what time is it?"}]


def function(name: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    schema["additionalProperties"] = False
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


WEATHER = function(
    "weather",
    {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 3}},
    description="The weather in a city",
)
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [WEATHER, CLOCK]
SMALL = {"max_tokens": 120, "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One slot, so that nothing shares a batch, and room for long prompts."""
    with Server(tmp_path_factory.mktemp("tools"), "--draft-max", "4", "-np", "1", "-c", "2048") as one:
        yield one
        assert not any("unexpected" in line or "Traceback" in line for line in one.lines)


@pytest.fixture(scope="module")
def client(api: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="unused", max_retries=0) as one:
        yield one


def is_valid(call: Any) -> bool:
    """Whether the call is of a tool that exists, with arguments that obey its schema."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "clock":
        return bool(arguments == {})
    return (
        call.function.name == "weather"
        and set(arguments) == {"city", "days"}
        and arguments["city"] in ("Paris", "Rome")
        and arguments["days"] in (1, 2, 3)
    )


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "clock"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
        ({"type": "function", "function": {"name": "weather"}}, {"weather"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [CLOCK]}},
            {"clock"},
        ),
    ],
    ids=["required", "clock", "weather", "allowed"],
)
def test_a_forced_call_and_its_stream(client: openai.OpenAI, choice: Any, names: set[str]) -> None:
    for seed in range(3):
        asked = {
            "model": MODEL,
            "messages": ASKED,
            "tools": TOOLS,
            "tool_choice": choice,
            "seed": seed,
            **SMALL,
        }
        (whole,) = client.chat.completions.create(**asked).choices
        assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
        (call,) = whole.message.tool_calls
        assert is_valid(call)
        assert call.function.name in names
        assert len(call.id) == 29
        with client.chat.completions.stream(**asked) as stream:
            events = [event for event in stream if event.type.startswith("tool_calls.")]
            (final,) = stream.get_final_completion().choices
        assert final.finish_reason == "tool_calls"
        (streamed,) = final.message.tool_calls
        assert streamed.function.to_dict() == call.function.to_dict() | {"parsed_arguments": None}
        assert streamed.id != call.id
        deltas = [event.arguments_delta for event in events if event.type.endswith(".delta")]
        assert "".join(deltas) == call.function.arguments
        assert events[-1].type == "tool_calls.function.arguments.done"


def test_several_calls(client: openai.OpenAI) -> None:
    """A line after a call can only begin another one."""
    asked = {
        "model": MODEL, "messages": ASKED, "tools": [CLOCK], "tool_choice": "required", "seed": 1,
        "max_tokens": 100, "extra_body": {"logit_bias": [["\n", 50]]},
    }  # fmt: skip
    (choice,) = client.chat.completions.create(**asked).choices
    calls = choice.message.tool_calls
    assert len(calls) > 1
    assert all(is_valid(call) for call in calls[:-1])
    assert len({call.id for call in calls}) == len(calls)
    (alone,) = client.chat.completions.create(**asked, parallel_tool_calls=False).choices
    assert (len(alone.message.tool_calls), alone.finish_reason) == (1, "tool_calls")


def test_each_choice_has_calls_of_its_own(api: Server) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "n": 3, "seed": 1, **SMALL}
    choices = api.chat(ASKED, **asked).json["choices"]
    calls = [call for choice in choices for call in choice["message"]["tool_calls"]]
    assert len({call["id"] for call in calls}) == 3
    streamed: dict[int, str] = {}
    for event in api.chat(ASKED, **asked, stream=True).events:
        for choice in event["choices"]:
            for part in choice["delta"].get("tool_calls", ()):
                index = choice["index"]
                streamed[index] = streamed.get(index, "") + part["function"]["arguments"]
    assert [streamed[i] for i in range(3)] == [call["function"]["arguments"] for call in calls]


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_an_answer_may_be_text_despite_tools(api: Server, choice: str) -> None:
    for seed in range(3):
        asked = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 40}
        (given,) = api.chat(ASKED, **asked).json["choices"]
        if choice == "none":
            assert given["finish_reason"] in ("stop", "length")
            assert "tool_calls" not in given["message"]
            assert "<tool_call>" not in given["message"]["content"]
        else:
            assert all(json.loads(c["function"]["arguments"]) for c in given["message"].get("tool_calls", ()))


def test_the_prompt_shows_all_tools_whatever_the_choice(api: Server) -> None:
    bodies = [{"tools": TOOLS}] + [{"tools": TOOLS, "tool_choice": c} for c in ("none", "required", CLOCK)]
    prompts = {api.post("/apply-template", {"messages": ASKED, **body}).json["prompt"] for body in bodies}
    (prompt,) = prompts
    assert '"name": "weather", "description": "The weather in a city"' in prompt
    assert '"clock"' in prompt
    assert "weather" not in api.post("/apply-template", {"messages": ASKED}).json["prompt"]


@pytest.mark.parametrize("choice", ["auto", "required", CLOCK])
def test_the_same_answer_without_speculation(api: Server, choice: Any) -> None:
    for seed in range(2):
        asked = {"tools": TOOLS, "tool_choice": choice, "seed": seed, "max_tokens": 60, "temperature": 1.0}
        drafted, plain = (
            api.chat(ASKED, **asked, speculation={"enabled": enabled}).json for enabled in (True, False)
        )
        for answer in (drafted, plain):
            for call in answer["choices"][0]["message"].get("tool_calls", ()):
                del call["id"]
        assert drafted["choices"] == plain["choices"]
        if choice != "auto":
            assert drafted["speculation"]["forced_tokens"] > 3


def test_an_answer_is_a_schema_text_or_calls(api: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"enum": [{"a": 1}]}}}
    asked = {"tools": [CLOCK], "response_format": form, "max_tokens": 60}
    message = api.chat(ASKED, **asked).json["choices"][0]["message"]
    assert message.get("tool_calls") or json.loads(message["content"]) == {"a": 1}
    forced = api.chat(ASKED, **asked, tool_choice="required").json["choices"][0]["message"]
    assert forced["content"] is None
    text = api.chat(ASKED, **asked, tool_choice="none").json["choices"][0]["message"]["content"]
    assert json.loads(text) == {"a": 1}


def test_a_call_that_is_cut_off(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": ASKED, "tools": [WEATHER], "tool_choice": "required", "seed": 1}
    (whole,) = client.chat.completions.create(**asked, max_tokens=14).choices
    assert whole.finish_reason == "length"
    with client.chat.completions.stream(**asked, max_tokens=14) as stream:
        for _ in stream:
            pass
        (final,) = (
            stream.current_completion_snapshot.choices
        )  # the client refuses final ones that are cut off
    assert final.finish_reason == "length"
    calls = [choice.message.tool_calls or [] for choice in (whole, final)]
    assert [c.function.arguments for c in calls[0]] == [c.function.arguments for c in calls[1]]


def test_the_end_marker_of_a_call_is_not_text(api: Server) -> None:
    asked = {"tools": [CLOCK], "tool_choice": "required", "seed": 1, "parallel_tool_calls": False}
    whole = api.chat(ASKED, **asked, max_tokens=100).json
    n = whole["usage"]["completion_tokens"]
    for max_tokens in range(n - 5, n):
        (choice,) = api.chat(ASKED, **asked, max_tokens=max_tokens).json["choices"]
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{}"
        assert choice["finish_reason"] == "length"


def test_logprobs_of_the_text_alone(api: Server) -> None:
    asked = {"tools": [CLOCK], "logprobs": True, "top_logprobs": 1, "max_tokens": 30, "seed": 1}
    (call,) = api.chat(ASKED, **asked, tool_choice="required", parallel_tool_calls=False).json["choices"]
    assert call["logprobs"]["content"] == []
    (text,) = api.chat(ASKED, **asked, tool_choice="none").json["choices"]
    tokens = [entry["token"] for entry in text["logprobs"]["content"]]
    assert "".join(tokens).strip() == text["message"]["content"].strip() != ""


@pytest.mark.parametrize("stream", [False, True])
def test_schemas_that_cannot_be_used(api: Server, stream: bool) -> None:
    """strict makes what is not supported an error; otherwise the arguments are any object."""
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)"}}}
    tool = {"type": "function", "function": {"name": "odd", "parameters": odd}}
    asked = {"tool_choice": "required", "max_tokens": 8, "stream": stream}
    assert api.chat(ASKED, tools=[tool], **asked).status == 200
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}
    reply = api.chat(ASKED, tools=[strict], **asked)
    assert reply.status == 400, reply.body
    assert "'odd'" in reply.error["message"]
    assert reply.error["param"] == "tools"


class TestLoops:
    """Three turns of an agent, then its answer."""

    def test_openai(self, client: openai.OpenAI) -> None:
        messages: list[Any] = list(ASKED)
        asked = {"model": MODEL, "tools": TOOLS, **SMALL}
        for turn in range(3):
            with client.chat.completions.stream(
                messages=messages, tool_choice="required", seed=turn, **asked
            ) as stream:
                message = stream.get_final_completion().choices[0].message
            (call,) = message.tool_calls
            assert is_valid(call)
            messages += [message, {"role": "tool", "tool_call_id": call.id, "content": f"result {turn}"}]
        last = client.chat.completions.create(messages=messages, tool_choice="none", seed=1, **asked)
        assert last.choices[0].message.content
        assert last.choices[0].message.tool_calls is None

    @pytest.mark.filterwarnings("default")
    def test_langchain(self, langchain: Any) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        messages: list[Any] = [HumanMessage("Is it raining in Paris?")]
        for turn in range(3):
            bound = langchain.bind_tools(TOOLS, tool_choice="any", parallel_tool_calls=False)
            answer = bound.invoke(messages)
            (call,) = answer.tool_calls
            assert call["name"] in ("weather", "clock")
            messages += [answer, ToolMessage(f"result {turn}", tool_call_id=call["id"])]
        last = langchain.bind_tools(TOOLS, tool_choice="none").invoke(messages)
        assert last.content
        assert last.tool_calls == []


@pytest.fixture(scope="module")
def langchain(api: Server, chat_openai: Any) -> Any:
    return chat_openai(api, max_tokens=80, seed=5)


class Forecast(BaseModel):
    """A forecast."""

    model_config = ConfigDict(extra="forbid")

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=3)


@pytest.mark.filterwarnings("default")
class TestLangChain:
    def test_structured_output_by_a_call(self, langchain: Any) -> None:
        structured = langchain.with_structured_output(Forecast, method="function_calling")
        assert isinstance(structured.invoke("Is it raining in Paris?"), Forecast)

    def test_a_stream_adds_up(self, langchain: Any) -> None:
        bound = langchain.bind_tools(TOOLS, tool_choice="weather", parallel_tool_calls=False)
        joined = None
        for part in bound.stream("Is it raining in Paris?"):
            joined = part if joined is None else joined + part
        (call,) = joined.tool_calls
        (whole,) = bound.invoke("Is it raining in Paris?").tool_calls
        assert (call["name"], call["args"]) == (whole["name"], whole["args"])


def test_the_next_turn_evaluates_only_what_is_new(api: Server) -> None:
    """Behind a long system prompt with tools, whatever is chosen."""
    system = {"role": "system", "content": "You are careful. " * 60}
    asked = {"tools": TOOLS, "max_tokens": 80, "seed": 1, "parallel_tool_calls": False}
    messages: list[Any] = [system, *ASKED]
    first = api.chat(messages, tool_choice="required", **asked).json
    n_first = first["usage"]["prompt_tokens"]
    assert n_first > 250
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "It is raining."}
    second = api.chat([*messages, message, result], tool_choice="none", **asked).json
    usage = second["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= n_first
    assert second["timings"]["prompt_n"] <= usage["prompt_tokens"] - n_first
    again = api.chat(messages, tool_choice="auto", **asked).json
    assert again["timings"]["prompt_n"] == 1
