"""OpenAI's Codex: flags that override its config.toml for one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables

_KEY = "SPECLLAMA_API_KEY"


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    provider = {"name": "specllama", "base_url": server.api, "wire_api": "responses"}
    if server.key:
        provider["env_key"] = _KEY
    values = {
        "model": _toml(server.model),
        "model_provider": _toml("specllama"),
        "model_providers.specllama": _table(provider),
        "analytics.enabled": "false",
    }
    if server.n_ctx:
        values["model_context_window"] = str(server.n_ctx)
    variables = {_KEY: server.key} if server.key else {}
    return ClientSettings(variables, arguments=tuple(_flags(values)))


def _flags(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield from ("-c", f"{name}={value}")


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _table(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name} = {_toml(value)}" for name, value in values.items()) + "}"


CODEX = Client("codex", "npm install -g @openai/codex", _settings, AGENT_CONTEXT)
