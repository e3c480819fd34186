"""Open WebUI: environment variables. What its admin page has stored takes precedence over them."""

from __future__ import annotations

from specllama.cli.launch.client import Client, ClientSettings, ModelServer, Variables

_PORT = "3000"  # its default is the one of `specllama serve`


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "OPENAI_API_BASE_URL": server.api,
        "OPENAI_API_KEY": server.any_key,
        "ENABLE_OLLAMA_API": "false",
        "ENABLE_VERSION_UPDATE_CHECK": "false",
    }
    return ClientSettings(variables)


OPEN_WEBUI = Client(
    "open-webui", "pip install open-webui", _settings, alone=("serve", "--host", "127.0.0.1", "--port", _PORT)
)
