"""Run by the Python of scripts/agents: a loop with one tool, then a schema. argv: URL, provider."""

import json
import sys
from typing import Any, Literal

import litellm
from pydantic import BaseModel


class Person(BaseModel):
    kind: Literal["one"]
    old: bool


litellm.suppress_debug_info = True
url, provider = sys.argv[1:]
base = url if provider in ("anthropic", "ollama_chat") else f"{url}/v1"
how: dict[str, Any] = {"model": f"{provider}/thinker", "api_base": base, "api_key": "unused"}
if provider == "anthropic":
    how |= {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "allowed_openai_params": ["thinking"],  # for litellm knows no model of this name
        "max_tokens": 2048,
    }
elif provider == "ollama_chat":
    how["think"] = True
schema = {"type": "object", "properties": {"line": {"type": "string"}}, "required": ["line"]}
function = {"name": "append", "description": "Append a line to the file.", "parameters": schema}
messages: list[Any] = [{"role": "user", "content": "write to the file"}]
thoughts = 0
for _ in range(5):
    answer = litellm.completion(messages=messages, tools=[{"type": "function", "function": function}], **how)
    message = answer.choices[0].message
    thoughts += bool(getattr(message, "reasoning_content", None))
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        with open("file", "a", encoding="utf-8") as file:
            file.write(f"{json.loads(call.function.arguments)['line']}\n")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "written"})
if provider == "anthropic":
    how.pop("thinking")  # litellm asks for a schema by a tool that must be called
asked = [{"role": "user", "content": "Who is it?"}]
found = litellm.completion(messages=asked, response_format=Person, **how).choices[0].message.content
Person.model_validate_json(found)
sys.stdout.write(f"{message.content} {thoughts}")
