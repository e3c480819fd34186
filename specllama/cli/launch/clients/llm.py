"""Simon Willison's llm: a folder of its own, which a variable names, with one model. JSON is YAML."""

from __future__ import annotations

import json

from specllama.cli.launch.client import Client, ClientSettings, ModelServer, Variables, folder

_MODEL = "specllama"


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    model = {
        "model_id": _MODEL,
        "model_name": server.model,
        "api_base": server.api,
        "supports_tools": True,
        "supports_schema": True,
        "vision": server.vision,
    }
    if server.key:
        model["api_key_name"] = _MODEL  # without a stored key of this name the variable is used
    own = folder() / "llm"
    return ClientSettings(
        {"LLM_USER_PATH": str(own), "LLM_MODEL": _MODEL}
        | ({"OPENAI_API_KEY": server.key} if server.key else {}),
        files={own / "extra-openai-models.yaml": json.dumps([model], indent=2)},
    )


LLM = Client("llm", "pip install llm", _settings, alone=("chat",))
