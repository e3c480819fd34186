"""Simon Willison's llm: a model in its extra-openai-models.yaml, chosen by a variable."""

from __future__ import annotations

import sys
from pathlib import Path

from specllama.cli.launch.client import Client, ClientFile, ClientSettings, ModelServer, Variables
from specllama.cli.launch.files import yaml_item
from specllama.config.places import home
from specllama.errors import ResourceError

_MODEL = "specllama"


def _settings(server: ModelServer, environ: Variables) -> ClientSettings:
    item = {
        "model_id": _MODEL,
        "model_name": server.model,
        "api_base": server.api,
        "supports_tools": True,
        "supports_schema": True,
    }
    if server.key:
        item["api_key_name"] = _MODEL  # without a stored key of this name the variable is used
    path = _folder(environ) / "extra-openai-models.yaml"
    return ClientSettings(
        {"LLM_MODEL": _MODEL} | ({"OPENAI_API_KEY": server.key} if server.key else {}),
        files=(
            ClientFile(
                path,
                yaml_item("model_id", item),
                entry={"model_id": _MODEL, "api_base": server.api},
            ),
        ),
    )


def _folder(environ: Variables) -> Path:
    """Where llm keeps its files."""
    if given := environ.get("LLM_USER_PATH"):
        return Path(given)
    config = environ.get("XDG_CONFIG_HOME")
    if config and sys.platform != "darwin":
        return Path(config) / "io.datasette.llm"
    if (directory := home()) is None:
        raise ResourceError("llm keeps its models in the home directory, and there is none", "set HOME")
    kept = ("Library", "Application Support") if sys.platform == "darwin" else (".config",)
    return directory.joinpath(*kept, "io.datasette.llm")


LLM = Client("llm", "pip install llm", _settings, alone=("chat",))
