"""The names of the clients, and where each is."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from specllama.cli.launch.client import Client
from specllama.errors import UsageError

_CLIENTS: Mapping[str, str] = {
    "codex": "codex:CODEX",
    "claude": "claude:CLAUDE",
    "opencode": "opencode:OPENCODE",
    "cline": "cline:CLINE",
    "continue": "continue_:CONTINUE",
    "llm": "llm:LLM",
    "aider": "aider:AIDER",
    "open-webui": "open_webui:OPEN_WEBUI",
}
NAMES = tuple(_CLIENTS)


def client(name: str) -> Client:
    """The client of this name. Raises UsageError."""
    if name not in _CLIENTS:
        raise UsageError(f"there is no client {name!r}", f"there are: {', '.join(NAMES)}")
    module, _, variable = _CLIENTS[name].partition(":")
    client: Client = getattr(importlib.import_module(f"specllama.cli.launch.clients.{module}"), variable)
    return client
