"""opencode: a variable with a part of its configuration, which is merged with its files."""

from __future__ import annotations

import json

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables
from specllama.cli.launch.files import merged, parsed_object
from specllama.errors import UsageError
from specllama.json_types import JsonObject

_CONFIG, _KEY = "OPENCODE_CONFIG_CONTENT", "SPECLLAMA_API_KEY"


def _settings(server: ModelServer, environ: Variables) -> ClientSettings:
    model: JsonObject = {"name": server.model, "tool_call": True}
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
    try:
        before = parsed_object(environ.get(_CONFIG) or "{}")
    except UsageError as error:
        raise error.prefixed(f"{_CONFIG} ") from None
    variables = {_CONFIG: json.dumps(merged(before, config))}
    return ClientSettings(variables | ({_KEY: server.key} if server.key else {}))


OPENCODE = Client("opencode", "npm install -g opencode-ai", _settings, AGENT_CONTEXT)
