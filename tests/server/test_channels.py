"""Reasoning in channels without tools, in every dialect: a tiny model with gpt-oss's control tokens, whose
answer a grammar spells out token by token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import tinygguf
from tests.support.channels import (
    ANSWER,
    JSON,
    SCHEMA,
    TEMPLATE,
    TEXT,
    THOUGHT,
    TO_FINAL,
    TOKENS,
    gpt_oss,
    spelt_out,
)
from tests.support.serving import Server

ASK = [{"role": "user", "content": "Say hello."}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
CHANNEL = str(tinygguf.N_VOCAB - len(TOKENS) + TOKENS.index("<|channel|>"))
LETTER = str(len(tinygguf.CONTROL) + ord("a"))
FINAL = {str(i): bias for i, bias in TO_FINAL.items()}


@pytest.fixture(scope="module", params=["auto", "hermes"])
def oss(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Channels are read whatever the form of calls is."""
    home = tmp_path_factory.mktemp("oss")
    path = gpt_oss(home / "oss.gguf")
    (home / "oss.jinja").write_text(TEMPLATE)
    more = ("-m", str(path), "-md", "none", "--chat-template-file", str(home / "oss.jinja"), "-c", "1024",
            "--tool-format", request.param)  # fmt: skip
    with Server(home, *more) as server:
        yield server
        assert not any("Traceback" in line for line in server.lines)


def chunks(oss: Server, **fields: Any) -> list[dict[str, Any]]:
    return [event for event in oss.chat(ASK, stream=True, **fields).events if event != "[DONE]"]


def test_chat_completions(oss: Server) -> None:
    script: dict[str, Any] = {"grammar": spelt_out(), "max_tokens": 60, "temperature": 0}
    answer = oss.chat(ASK, logprobs=True, **script).json
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, TEXT)
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == TEXT
    deltas = [c["delta"] for chunk in chunks(oss, **script) for c in chunk["choices"]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == THOUGHT
    assert "".join(d.get("content") or "" for d in deltas) == TEXT


def test_stop_strings_do_not_match_channel_headers(oss: Server) -> None:
    script: dict[str, Any] = {"grammar": spelt_out(), "max_tokens": 60, "temperature": 0}
    (choice,) = oss.chat(ASK, stop=["analysis", "final"], **script).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT, "stop")
    (choice,) = oss.chat(ASK, stop=["lo", "final"], **script).json["choices"]
    assert choice["message"]["content"] == TEXT.partition("lo")[0]


def test_a_call_in_a_foreign_format(oss: Server) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    fields: dict[str, Any] = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    (choice,) = oss.chat(ASK, max_tokens=200, temperature=0, **fields).json["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("f", JSON)
    assert not choice["message"]["content"]


def test_a_response_format(oss: Server) -> None:
    fields: dict[str, Any] = {"max_tokens": 100, "temperature": 0, "logit_bias": FINAL}
    (choice,) = oss.chat(ASK, response_format=FORMAT, **fields).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (JSON, "stop")


def test_a_partial_answer_is_continued_in_the_final_channel(oss: Server) -> None:
    messages = [*ASK, {"role": "assistant", "content": "Hel"}]
    script: dict[str, Any] = {"grammar": spelt_out("lo.<|return|>"), "max_tokens": 60, "temperature": 0}
    (choice,) = oss.chat(messages, continue_final_message=True, add_generation_prompt=False, **script).json[
        "choices"
    ]
    assert choice["message"]["content"] == "lo."


def test_an_answer_with_reasoning_is_continued_after_its_channel(oss: Server) -> None:
    for text, expected in (("Hel", "Hel"), ("", "")):
        messages = [*ASK, {"role": "assistant", "content": text, "reasoning_content": THOUGHT}]
        prompt = oss.post("/apply-template", {"messages": messages}).json["prompt"]
        before, _, _ = ANSWER.partition(TEXT)
        assert prompt.endswith(f"<|start|>assistant{before}{expected}")
        script: dict[str, Any] = {"grammar": spelt_out("lo.<|return|>"), "max_tokens": 60, "temperature": 0}
        (choice,) = oss.chat(messages, **script).json["choices"]
        assert choice["message"]["content"] == "lo."


def test_a_budget_does_not_count_an_answer_that_follows_continued_reasoning(oss: Server) -> None:
    messages = [*ASK, {"role": "assistant", "content": "", "reasoning_content": THOUGHT}]
    script: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logit_bias": {LETTER: 100}}
    for limit in ({}, {"reasoning_budget_tokens": 2}):
        message = oss.chat(messages, **script, **limit).json["choices"][0]["message"]
        assert (message["content"], message.get("reasoning_content")) == ("a" * 12, None)


def test_responses(oss: Server) -> None:
    body = {"input": ASK, "grammar": spelt_out(), "max_output_tokens": 60, "temperature": 0}
    output = oss.post("/v1/responses", body).json["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]
    assert output[0]["content"][0]["text"] == THOUGHT
    assert output[1]["content"][0]["text"] == TEXT


def test_messages(oss: Server) -> None:
    body = {"model": "oss", "messages": ASK, "grammar": spelt_out(), "max_tokens": 60, "temperature": 0}
    content = oss.post("/v1/messages", body).json["content"]
    assert [(block["type"], block.get("thinking", block.get("text"))) for block in content] == [
        ("thinking", THOUGHT),
        ("text", TEXT),
    ]


def test_ollama(oss: Server) -> None:
    """It has no grammars: the answer is free, and has no marker."""
    options = {"num_predict": 100, "temperature": 0, "seed": 1}
    body = {"model": "oss", "messages": ASK, "stream": False, "options": options, "format": SCHEMA}
    message = oss.post("/api/chat", body).json["message"]
    assert "<|" not in message["content"] + message.get("thinking", "")


def test_native_completions_and_raw_prompts_are_not_parsed(oss: Server) -> None:
    script = {"prompt": "<|start|>assistant", "grammar": spelt_out(), "temperature": 0}
    assert oss.post("/completion", {**script, "n_predict": 60}).json["content"] == ANSWER
    text = oss.post("/v1/completions", {**script, "max_tokens": 60}).json["choices"][0]["text"]
    assert text == ANSWER


@pytest.mark.parametrize(
    ("asked", "content"),
    [({"json_schema": SCHEMA}, JSON), ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "a")],
)
def test_a_budget_ends_the_analysis(
    oss: Server, request: pytest.FixtureRequest, asked: dict[str, Any], content: str
) -> None:
    """With tools the next channel is free: it is analysis again, which ends at once, then the final one."""
    if "tools" in asked and request.node.callspec.params["oss"] == "hermes":
        pytest.skip("with calls in a foreign form nothing is in channels")
    # A letter that leads to the channel analysis, and is all that is thought there.
    asked = asked | {"max_tokens": 60, "temperature": 0, "logit_bias": {LETTER: 60, CHANNEL: 40}}
    asked |= {"reasoning_budget_tokens": 3, "reasoning_budget_message": " enough"}
    answers = [
        oss.chat(ASK, **asked, speculation={"enabled": enabled}).json["choices"][0]["message"]
        for enabled in (True, False)
    ]
    assert answers[0] == answers[1]
    assert answers[0]["reasoning_content"] == "aaa enough"
    assert answers[0]["content"].startswith(content)
