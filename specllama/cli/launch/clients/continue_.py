"""Continue's command line: a file of its own, which a flag names. JSON is YAML."""

from __future__ import annotations

import json

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables, folder
from specllama.json_types import JsonObject

_KEY = "SPECLLAMA_API_KEY"


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    model: JsonObject = {
        "name": server.model,
        "provider": "openai",
        "model": server.model,
        "apiBase": server.api,
        "apiKey": f"${{{{ secrets.{_KEY} }}}}" if server.key else server.any_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use", *(["image_input"] if server.vision else [])],
    }
    if server.n_ctx:
        model["defaultCompletionOptions"] = {"contextLength": server.n_ctx, "maxTokens": server.n_ctx // 4}
    text = json.dumps({"name": "specllama", "version": "1.0.0", "schema": "v1", "models": [model]}, indent=2)
    path = folder() / "continue.yaml"
    return ClientSettings(
        {"CONTINUE_CLI_ENABLE_TELEMETRY": "0"} | ({_KEY: server.key} if server.key else {}),
        arguments=("--config", str(path)),
        files={path: text},
    )


CONTINUE = Client("cn", "npm install -g @continuedev/cli", _settings, AGENT_CONTEXT)
