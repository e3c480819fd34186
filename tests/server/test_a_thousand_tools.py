"""A thousand tools in one request are answered, and nobody else waits for them: the thread that decodes does
not compile their grammar. The template shows the names alone, to keep the prompt short.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.soak.bystander import Bystander
from tests.support.serving import Server

pytestmark = pytest.mark.alone
N = 1000
GAP_SECONDS, HEALTH_SECONDS = 2.0, 0.75  # of test_costly_bodies.py
TEMPLATE = """{# <tool_call> {"name": "f", "arguments": {}} #}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if loop.first %}{{ tools | default([]) | map(attribute="function.name") | join(" ") }} {% endif %}
{{- m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CHOICES = {"auto": "auto", "required": "any"}  # Anthropic's names
Watched = tuple[Server, Bystander]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    home = tmp_path_factory.mktemp("tools")
    template = home / "names.jinja"
    template.write_text(TEMPLATE, "utf-8")
    flags = (
        "--draft-max",
        "4",
        "-np",
        "2",
        "-c",
        "16384",
        "--alias",
        "*",
        "--chat-template-file",
        str(template),
    )
    with Server(home, *flags) as server, Bystander(server.connect, server.process.pid) as bystander:
        bystander.wait_until_streaming()
        yield server, bystander


def parameters(i: int) -> dict[str, Any]:
    path = {f"path{i}": {"type": "string", "maxLength": 8}}
    return {"type": "object", "properties": path, "required": list(path), "additionalProperties": False}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_other_requests_are_not_delayed(watched: Watched, api: str, choice: str) -> None:
    server, bystander = watched
    functions = [{"name": f"f{i}", "parameters": parameters(i)} for i in range(N)]
    asked = [{"role": "user", "content": "call f17"}]
    began = time.monotonic()
    if api == "chat":
        tools: list[Any] = [{"type": "function", "function": one} for one in functions]
        reply = server.chat(asked, tools=tools, tool_choice=choice, max_tokens=40, temperature=0)
    elif api == "responses":
        tools = [{"type": "function", **one} for one in functions]
        body = {"input": asked, "tools": tools, "tool_choice": choice, "temperature": 0}
        reply = server.post("/v1/responses", {**body, "max_output_tokens": 40})
    else:
        tools = [{"name": one["name"], "input_schema": one["parameters"]} for one in functions]
        body = {"messages": asked, "tools": tools, "tool_choice": {"type": CHOICES[choice]}}
        reply = server.post("/v1/messages", {**body, "max_tokens": 40, "temperature": 0})
    noticed = bystander.noticed(began, time.monotonic())
    assert reply.status == 200, reply.body
    if choice == "required":
        called = _called(api, reply.json)
        assert called in [one["name"] for one in functions]
    assert noticed.unanswered == 0
    assert noticed.health_max < HEALTH_SECONDS, noticed
    assert noticed.gap < GAP_SECONDS, noticed
    assert bystander.lost == []


def _called(api: str, answer: Any) -> str:
    """The name of the first call."""
    if api == "chat":
        name = answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    elif api == "responses":
        name = answer["output"][0]["name"]
    else:
        name = answer["content"][0]["name"]
    return str(name)
