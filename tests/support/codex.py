"""The first request of a Codex session: that of version 0.169, shortened, with what earlier ones send."""

from __future__ import annotations

from typing import Any


def codex_request(model: str) -> dict[str, Any]:
    """Namespaces of tools, hosted and custom tools, reasoning without content, nulls."""
    return {
        "model": model,
        "stream": True,
        "instructions": "You are a coding agent.",
        "input": [
            _said("developer", "<skills_instructions>", "<permissions instructions>"),
            _said("user", "<environment_context>"),
            _said("user", "list the files"),
            {"type": "reasoning", "summary": [], "encrypted_content": None},
        ],
        "tools": [
            _function("exec_command", "cmd"),
            _function("update_plan"),
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Edits files.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"},
            },
            {"type": "web_search", "external_web_access": False},
            {"type": "image_generation", "output_format": "png"},
            {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {}},
            {
                "type": "namespace",
                "name": "mcp__files",
                "description": "Files.",
                "tools": [_function("read", "path") | {"defer_loading": True}],
            },
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": None,
        "service_tier": None,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "text": {"verbosity": "low"},
        "client_metadata": {"session_id": "0199", "x-codex-turn-metadata": '{"sandbox":"seccomp"}'},
    }


def _said(role: str, *texts: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{len(texts[0])}", "role": role, "content": content}


def _function(name: str, *parameters: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {parameter: {"type": "string"} for parameter in parameters},
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "name": name,
        "description": "A tool.",
        "strict": False,
        "parameters": schema,
    }
