"""aider: environment variables, and a flag for the model."""

from __future__ import annotations

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "OPENAI_API_BASE": server.api,
        "OPENAI_API_KEY": server.any_key,
        "AIDER_ANALYTICS": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
    }
    return ClientSettings(variables, arguments=("--model", f"openai/{server.model}"))


AIDER = Client("aider", "pip install aider-chat", _settings, AGENT_CONTEXT)
