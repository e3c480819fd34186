"""What a RewritingProxy makes of an agent's requests: two calls of a tool, or more, then a text."""

from __future__ import annotations

from typing import Any

from tests.support.rewriting_proxy import Body

END = "all done"
_TEXT = {"const": END}
_PENALTIES = ("presence_penalty", "frequency_penalty", "temperature", "top_p", "top_k")


class TwoTurns:
    """For chat/completions, responses, messages and Ollama's chat. arguments: of the calls. thinks: whether
    the sampling and the reasoning that the server is set to stay. n_calls: with results, before the text.
    Requests with neither tools nor a schema, such as that for a title, are kept short.
    """

    def __init__(self, tool: str, thinks: bool = False, **arguments: Any) -> None:
        self.tool, self._thinks, self.n_calls = tool, thinks, 2
        self.schema = {
            "type": "object",
            "properties": {name: {"const": value} for name, value in arguments.items()},
            "required": list(arguments),
            "additionalProperties": False,
        }
        self.results: list[int] = []  # number of tool results in each request that has the tool

    def __call__(self, path: str, body: Body) -> None:
        for end, script in (
            ("/v1/messages", self._messages),
            ("/chat/completions", self._chat),
            ("/responses", self._responses),
            ("/api/chat", self._ollama),
        ):
            if path.partition("?")[0].endswith(end):
                if self._thinks:
                    for name in _PENALTIES:
                        body.pop(name, None)
                        body.get("options", {}).pop(name, None)
                script(body)

    def _has_tool(self, body: Body, schema: str, n_results: int) -> bool:
        """Pin the tool's arguments, and note the number of results."""
        tools = [tool.get("function", tool) for tool in body.get("tools") or []]
        found = [tool for tool in tools if tool.get("name") == self.tool]
        for tool in found:
            tool[schema] = self.schema
            tool.pop("strict", None)
        if found:
            self.results.append(n_results)
        return bool(found)

    def _messages(self, body: Body) -> None:
        asks = body.get("output_config") or body.get("tools")
        if not self._thinks:
            body.pop("thinking", None)
            body.pop("output_config", None)
        body["max_tokens"] = 200
        blocks = [block for m in body["messages"] if isinstance(m["content"], list) for block in m["content"]]
        n = sum(block["type"] == "tool_result" for block in blocks)
        if not self._has_tool(body, "input_schema", n):
            body["max_tokens"] = 200 if asks else 8
        elif n < self.n_calls:
            body["tool_choice"] = {"type": "tool", "name": self.tool, "disable_parallel_tool_use": True}
        else:
            body["tool_choice"] = {"type": "none"}
            body["output_config"] = {"format": {"type": "json_schema", "schema": _TEXT}}

    def _chat(self, body: Body) -> None:
        body.pop("max_tokens", None)
        body["max_completion_tokens"] = 200
        n = sum(message["role"] == "tool" for message in body["messages"])
        if not self._has_tool(body, "parameters", n):
            asks = body.get("tools") or body.get("response_format")
            body["max_completion_tokens"] = 200 if asks else 8
        elif n < self.n_calls:
            body["tool_choice"] = {"type": "function", "function": {"name": self.tool}}
            body["parallel_tool_calls"] = False
        else:
            body["tool_choice"] = "none"
            form = {"name": "end", "schema": _TEXT}
            body["response_format"] = {"type": "json_schema", "json_schema": form}

    def _responses(self, body: Body) -> None:
        body["max_output_tokens"] = 200
        items = body["input"] if isinstance(body["input"], list) else []
        n = sum(item.get("type") == "function_call_output" for item in items)
        if not self._has_tool(body, "parameters", n):
            asks = body.get("tools") or (body.get("text") or {}).get("format")
            body["max_output_tokens"] = 200 if asks else 16
        elif n < self.n_calls:
            body["tool_choice"] = {"type": "function", "name": self.tool}
            body["parallel_tool_calls"] = False
        else:
            body["tool_choice"] = "none"
            body["text"] = {"format": {"type": "json_schema", "name": "end", "schema": _TEXT}}

    def _ollama(self, body: Body) -> None:
        options = body.setdefault("options", {})
        options["num_predict"] = 200
        n = sum(message["role"] == "tool" for message in body["messages"])
        if not self._has_tool(body, "parameters", n):
            options["num_predict"] = 200 if body.get("tools") or body.get("format") else 8
        elif n < self.n_calls:
            body["tool_choice"] = {"type": "function", "function": {"name": self.tool}}
        else:
            body["tool_choice"] = "none"
            body["format"] = _TEXT
