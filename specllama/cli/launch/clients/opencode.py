"""opencode: a variable with a part of its configuration, which is merged with its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specllama import wire
from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables
from specllama.errors import UsageError
from specllama.json_types import JsonObject, why_not_json

_CONFIG, _KEY = "OPENCODE_CONFIG_CONTENT", "SPECLLAMA_API_KEY"


def _settings(server: ModelServer, environ: Variables) -> ClientSettings:
    model: JsonObject = {"name": server.model, "tool_call": True}
    if server.vision:  # else it leaves images out
        model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    if server.n_ctx:
        model["limit"] = {"context": server.n_ctx, "output": server.n_ctx // 4}
    options = {"baseURL": server.api, "apiKey": f"{{env:{_KEY}}}" if server.key else server.any_key}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "specllama",
        "options": options,
        "models": {server.model: model},
    }
    name = f"specllama/{server.model}"
    config = {
        "model": name,
        "small_model": name,
        "autoupdate": False,
        "share": "disabled",
        "provider": {"specllama": provider},
    }
    variables = {_CONFIG: json.dumps(merged(_given(environ), config))}
    return ClientSettings(variables | ({_KEY: server.key} if server.key else {}))


def _given(environ: Variables) -> JsonObject:
    """The user's own configuration in the variable. Raises UsageError."""
    try:
        return wire.from_text(dict[str, Any], environ.get(_CONFIG) or "{}")
    except ValueError as error:
        hint = "it was left as it is; correct or move it"
        raise UsageError(f"{_CONFIG} is not JSON, or no object: {why_not_json(error)}", hint) from None


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> JsonObject:
    """The old object with the values of the new one, objects within merged."""
    entries = dict(old)
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(before := entries.get(name), dict):
            entries[name] = merged(before, value)
        else:
            entries[name] = value
    return entries


OPENCODE = Client("opencode", "npm install -g opencode-ai", _settings, AGENT_CONTEXT)
