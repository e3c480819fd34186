"""Fields of llama-server in chat completions and completions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.serving import QUESTION, Server

LONG = [{"role": "user", "content": "This is a test. " * 60}]
PREFILL = [*QUESTION, {"role": "assistant", "content": "It copies"}]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_progress_and_timings(server: Server, path: str) -> None:
    prompt = {"messages": LONG} if "chat" in path else {"prompt": LONG[0]["content"]}
    fields = {"stream": True, "max_tokens": 6, "ignore_eos": True, "stream_options": {"include_usage": True}}
    asked = {"return_progress": True, "timings_per_token": True, "speculation": {"memory": False}}
    events = server.post(path, {**prompt, **fields, **asked}).events
    progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    assert len(progress) > 1
    assert progress[0]["processed"] == progress[0]["cache"]
    assert progress[-1]["processed"] == progress[-1]["total"] == events[-1]["usage"]["prompt_tokens"]
    *chunks, ended, last = events
    assert all("timings" in chunk for chunk in chunks if chunk["choices"][0] and "role" not in delta(chunk))
    predicted = [chunk["timings"]["predicted_n"] for chunk in chunks if "timings" in chunk]
    assert predicted == sorted(predicted)
    assert predicted[-1] == last["timings"]["predicted_n"] == 6
    assert "timings" not in ended
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    if "chat" in path:
        assert delta(events[0])["role"] == "assistant"
        assert not any("role" in delta(chunk) for chunk in chunks[1:])
    plain = server.post(path, {**prompt, **fields}).events
    assert not any("prompt_progress" in e or "timings" in e for e in plain[:-1])


def delta(chunk: dict[str, Any]) -> dict[str, Any]:
    first_delta: dict[str, Any] = chunk["choices"][0].get("delta", {})
    return first_delta


def test_an_answer_with_its_prompt(server: Server) -> None:
    for verbose in (True, False):
        answer = server.chat(PREFILL, max_tokens=4, verbose=verbose).json
        assert ("__verbose" in answer) is verbose
    answer = server.chat(PREFILL, max_tokens=4, seed=1, verbose=True, n=2).json
    shown = answer["__verbose"]
    rendered = server.post("/apply-template", {"messages": PREFILL}).json["prompt"]
    assert shown["prompt"] == f"<|endoftext|>{rendered}"  # the template writes no BOS
    assert shown["prompt"].endswith("assistant\nIt copies")
    assert shown["content"] == answer["choices"][0]["message"]["content"]
    assert shown["generation_settings"]["seed"] == 1
    events = server.chat(max_tokens=4, verbose=True, stream=True).events
    assert ["__verbose" in event for event in events] == [False] * (len(events) - 1) + [True]
    assert server.complete("zip", max_tokens=2, verbose=True).json["__verbose"]["prompt"].endswith("zip")


def test_how_the_prompt_ends(server: Server) -> None:
    def prompt(**fields: Any) -> str:
        reply = server.post("/apply-template", fields)
        assert reply.status == 200, reply.body
        rendered: str = reply.json["prompt"]
        return rendered

    opened = prompt(messages=QUESTION)
    assert opened == prompt(messages=QUESTION, add_generation_prompt=True)
    closed = prompt(messages=QUESTION, add_generation_prompt=False)
    assert opened == closed + "<|im_start|>assistant\n"
    continued = prompt(messages=PREFILL)
    assert continued == opened + "It copies"
    assert continued == prompt(messages=PREFILL, continue_final_message=True, add_generation_prompt=False)
    anew = prompt(messages=PREFILL, continue_final_message=False)
    assert anew.endswith("It copies<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"messages": PREFILL, "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
        ),
        ({"messages": QUESTION, "continue_final_message": True}, "messages"),
        ({"messages": [*PREFILL, PREFILL[-1]]}, "messages"),
        ({"messages": QUESTION, "add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"messages": [*QUESTION, {}]}, "messages[1].role"),
        ({"messages": "text"}, "messages"),
        ({"messages": [123]}, "messages[0]"),
        ({"messages": [{"role": "system", "content": 123}]}, "messages[0].content"),
        ({"messages": QUESTION, "response_format": {"type": "sound"}}, "response_format.type"),
        ({"messages": QUESTION, "response_format": {"type": "json_object", "schema": 123}}, None),
        ({"messages": QUESTION, "response_format": {"type": "json_object", "schema": {"type": 123}}}, None),
        (
            {"messages": QUESTION, "response_format": {"type": "json_object", "schema": {"type": "hiccup"}}},
            None,
        ),
        ({"messages": QUESTION, "grammar": "root ::= this is (not valid GBNF"}, None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str | None) -> None:
    reply = server.post("/chat/completions", fields)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error"), reply.body
    assert param is None or reply.error["param"] == param


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_biases_of_texts_and_samplers(exact: Server, path: str) -> None:
    prompt = {"messages": QUESTION} if "chat" in path else {"prompt": "def read("}

    def text(**fields: Any) -> str:
        reply = exact.post(path, {**prompt, "max_tokens": 16, "seed": 1, "ignore_eos": True, **fields})
        assert reply.status == 200, reply.body
        choice = reply.json["choices"][0]
        content: str = choice["message"]["content"] if "chat" in path else choice["text"]
        return content

    word = max(text(temperature=0).split(), key=len)
    assert word not in text(temperature=0, logit_bias=[[word, False], [f" {word}", False]])
    assert text(samplers=["temperature"], temperature=2) == text(top_k=0, top_p=1, min_p=0, temperature=2)
    assert (
        text(samplers=["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"])
        == text()
    )


@pytest.mark.parametrize("at", ["", "/v1"])
def test_lengths_of_prompts(server: Server, at: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for fields in ({"messages": QUESTION}, {"messages": PREFILL}, {"messages": QUESTION, "tools": tools}):
        length = server.post(f"{at}/chat/completions/input_tokens", fields).json
        usage = server.post(f"{at}/chat/completions", {**fields, "max_tokens": 1}).json["usage"]
        assert length == {"object": "response.input_tokens", "input_tokens": usage["prompt_tokens"]}
    asked = {"input": "What does shutil.copytree do?"}
    length = server.post(f"{at}/responses/input_tokens", asked).json
    usage = server.post(f"{at}/responses", {**asked, "max_output_tokens": 1}).json["usage"]
    assert length == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    for path in ("chat/completions", "responses"):
        reply = server.post(f"{at}/{path}/input_tokens", {"messages": [], "input": 5})
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


def test_progress_and_timings_of_responses(server: Server) -> None:
    asked = {"input": LONG[0]["content"], "stream": True, "max_output_tokens": 6, "ignore_eos": True}
    fields = {"return_progress": True, "timings_per_token": True, "speculation": {"memory": False}}
    lines = server.post("/responses", asked | fields).body.decode().split("\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    progress = [event for event in events if "prompt_progress" in event]
    assert len(progress) > 1
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert progress[-1]["prompt_progress"]["processed"] == progress[-1]["prompt_progress"]["total"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert all(event["timings"]["predicted_n"] > 0 for event in deltas)
    assert events[-1]["timings"] == events[-1]["response"]["timings"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_fields_of_sampling_have_an_effect_in_all_apis(exact: Server, path: str) -> None:
    prompt = {"input": "x"} if "responses" in path else {"messages": QUESTION, "max_tokens": 16}

    def answer(**fields: Any) -> str:
        reply = exact.post(path, {**prompt, "temperature": 0, "ignore_eos": True, "n_predict": 16, **fields})
        assert reply.status == 200, reply.body
        data = reply.json
        text: str = data.get("output", [data])[0]["content"][0]["text"]
        return text

    word = max(answer().split(), key=len)
    assert word not in answer(logit_bias=[[word, False], [f" {word}", False]])
