"""Cline's command line: a folder of its own, which a flag names.

A hub of Cline that runs in the background would know neither new variables nor new providers.
"""

from __future__ import annotations

import json

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables, folder

_PROVIDER = "openai-compatible"


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    settings = {"provider": _PROVIDER, "apiKey": server.any_key, "model": server.model, "baseUrl": server.api}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    text = json.dumps(
        {"version": 1, "lastUsedProvider": _PROVIDER, "modes": {}, "providers": {_PROVIDER: entry}}, indent=2
    )
    own = folder() / "cline"
    return ClientSettings(
        arguments=("--data-dir", str(own), "-P", _PROVIDER, "-m", server.model),
        files={own / "settings" / "providers.json": text},
    )


CLINE = Client("cline", "npm install -g cline", _settings, AGENT_CONTEXT)
