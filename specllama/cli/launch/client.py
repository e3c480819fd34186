"""The clients of `launch`: the program of each, the context it needs, and its settings for a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specllama import wire
from specllama.cli.options import own_options
from specllama.config.options import SERVE
from specllama.config.store import cache_dir
from specllama.errors import UsageError
from specllama.json_types import JsonObject, why_not_json

AGENT_CONTEXT = 32768  # tokens: an agent's instructions, tools and first files
Variables = Mapping[str, str]
NO_KEY = "unused"  # for clients that insist on a key
_KEY = "SPECLLAMA_API_KEY"


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server and one of its models. url: without /v1. key: "" for none. n_ctx, n_ctx_train: tokens of a
    text, and those that the model was trained on; 0 for unknown. vision: whether it is known to read images.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    n_ctx: int = 0
    n_ctx_train: int = 0
    vision: bool = False

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    @property
    def any_key(self) -> str:
        """The key, or a word where the server needs none."""
        return self.key or NO_KEY

    def secret(self, variable: str = _KEY) -> Variables:
        """The key as a variable, none without a key."""
        return {variable: self.key} if self.key else {}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client is started. variables: to set; removed: to unset; arguments: before the user's own. files:
    that it reads, in a folder of `launch`'s own, with their texts.
    """

    variables: Variables = field(default_factory=dict)
    removed: Sequence[str] = ()
    arguments: Sequence[str] = ()
    files: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """program: its command. install: the command that installs it. settings: from a server and the
    environment; raises UsageError for settings of the user that cannot be read. n_ctx: tokens that its first
    requests need, 0 for few. alone: the arguments without any of the user's.
    """

    program: str
    install: str
    settings: Callable[[ModelServer, Variables], ClientSettings]
    n_ctx: int = 0
    alone: Sequence[str] = ()


def _own_files() -> Path:
    return cache_dir() / "launch"


def _aider(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "OPENAI_API_BASE": server.api,
        "OPENAI_API_KEY": server.any_key,
        "AIDER_ANALYTICS": "false",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
    }
    return ClientSettings(variables, arguments=("--model", f"openai/{server.model}"))


_CLAUDE_MODELS = (
    "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
)  # fmt: skip
_OTHER_ACCOUNTS = (
    "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX",
)  # fmt: skip
_KNOWN_CONTEXT = 2 * AGENT_CONTEXT
"""From here on Claude Code gets the context; without one it assumes a million tokens. In a smaller one it
would shorten the conversation after its first request, since it keeps 13,000 tokens and the longest answer
free. There it shortens when the server says that the context is full.
"""


def _claude(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.any_key,
        **dict.fromkeys(_CLAUDE_MODELS, server.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # telemetry, updates, error reports
    }
    if server.n_ctx:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max(1024, server.n_ctx // 4))
    if server.n_ctx >= _KNOWN_CONTEXT:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(server.n_ctx)
    return ClientSettings(variables, removed=_OTHER_ACCOUNTS)


def _cline(server: ModelServer, _environ: Variables) -> ClientSettings:
    """A folder of its own: a hub in the background would know neither new variables nor new providers."""
    name, own = "openai-compatible", _own_files() / "cline"
    settings = {"provider": name, "apiKey": server.any_key, "model": server.model, "baseUrl": server.api}
    entry = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: entry}}
    return ClientSettings(
        arguments=("--data-dir", str(own), "-P", name, "-m", server.model),
        files={own / "settings" / "providers.json": json.dumps(providers, indent=2)},
    )


def _codex(server: ModelServer, _environ: Variables) -> ClientSettings:
    """Flags that override its config.toml for one run."""
    provider = {"name": "specllama", "base_url": server.api, "wire_api": "responses"}
    if server.key:
        provider["env_key"] = _KEY
    values = {
        "model": _toml(server.model),
        "model_provider": _toml("specllama"),
        "model_providers.specllama": f"{{{', '.join(f'{k} = {_toml(v)}' for k, v in provider.items())}}}",
        "analytics.enabled": "false",
    }
    if server.n_ctx:
        values["model_context_window"] = str(server.n_ctx)
    flags = [part for name, value in values.items() for part in ("-c", f"{name}={value}")]
    return ClientSettings(server.secret(), arguments=flags)


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _continue(server: ModelServer, _environ: Variables) -> ClientSettings:
    """JSON is YAML."""
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
    path = _own_files() / "continue.yaml"
    variables = {"CONTINUE_CLI_ENABLE_TELEMETRY": "0", **server.secret()}
    return ClientSettings(variables, arguments=("--config", str(path)), files={path: text})


def _llm(server: ModelServer, _environ: Variables) -> ClientSettings:
    """A folder of its own, with one model. JSON is YAML."""
    name, own = "specllama", _own_files() / "llm"
    model = {
        "model_id": name,
        "model_name": server.model,
        "api_base": server.api,
        "supports_tools": True,
        "supports_schema": True,
        "vision": server.vision,
    }
    if server.key:
        model["api_key_name"] = name  # without a stored key of this name the variable is used
    variables = {"LLM_USER_PATH": str(own), "LLM_MODEL": name, **server.secret("OPENAI_API_KEY")}
    file = own / "extra-openai-models.yaml"
    return ClientSettings(variables, files={file: json.dumps([model], indent=2)})


def _opencode(server: ModelServer, environ: Variables) -> ClientSettings:
    """A part of its configuration, which is merged with its files. Raises UsageError."""
    model: JsonObject = {"name": server.model, "tool_call": True}
    if server.vision:  # else it leaves images out
        model |= {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}
    if server.n_ctx:
        model["limit"] = {"context": server.n_ctx, "output": server.n_ctx // 4}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "specllama",
        "options": {"baseURL": server.api, "apiKey": f"{{env:{_KEY}}}" if server.key else server.any_key},
        "models": {server.model: model},
    }
    name, variable = f"specllama/{server.model}", "OPENCODE_CONFIG_CONTENT"
    config = {
        "model": name,
        "small_model": name,
        "autoupdate": False,
        "share": "disabled",
        "provider": {"specllama": provider},
    }
    try:
        given = wire.from_text(dict[str, Any], environ.get(variable) or "{}")
    except ValueError as error:
        hint = "it was left as it is; correct or move it"
        raise UsageError(f"{variable} is not JSON, or no object: {why_not_json(error)}", hint) from None
    return ClientSettings({variable: json.dumps(merged(given, config)), **server.secret()})


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> JsonObject:
    """The old object with the values of the new one, objects within merged."""
    entries = dict(old)
    for name, value in new.items():
        if isinstance(value, dict) and isinstance(before := entries.get(name), dict):
            entries[name] = merged(before, value)
        else:
            entries[name] = value
    return entries


def _open_webui(server: ModelServer, _environ: Variables) -> ClientSettings:
    """What its admin page has stored takes precedence over these variables."""
    variables = {
        "OPENAI_API_BASE_URL": server.api,
        "OPENAI_API_KEY": server.any_key,
        "ENABLE_OLLAMA_API": "false",
        "ENABLE_VERSION_UPDATE_CHECK": "false",
    }
    return ClientSettings(variables)


_ALONE = ("serve", "--host", "127.0.0.1", "--port", "3000")  # its default port is that of `specllama serve`
CLIENTS: Mapping[str, Client] = {
    "codex": Client("codex", "npm install -g @openai/codex", _codex, AGENT_CONTEXT),
    "claude": Client("claude", "npm install -g @anthropic-ai/claude-code", _claude, AGENT_CONTEXT),
    "opencode": Client("opencode", "npm install -g opencode-ai", _opencode, AGENT_CONTEXT),
    "cline": Client("cline", "npm install -g cline", _cline, AGENT_CONTEXT),
    "continue": Client("cn", "npm install -g @continuedev/cli", _continue, AGENT_CONTEXT),
    "llm": Client("llm", "pip install llm", _llm, alone=("chat",)),
    "aider": Client("aider", "pip install aider-chat", _aider, AGENT_CONTEXT),
    "open-webui": Client("open-webui", "pip install open-webui", _open_webui, alone=_ALONE),
}
NAMES = tuple(CLIENTS)
_MODEL = {"model": "as for serve; of a running server one of the models that it lists"}
OF_SERVER = [replace(o, help=_MODEL.get(o.name, o.help)) for o in SERVE if o.name != "force"]
"""The options that a server which `launch` starts is given."""
_OWN = own_options("launch", {"NAMES": ", ".join(NAMES)})
LAUNCH = [*(replace(o, completes=NAMES) if o.name == "client" else o for o in _OWN), *OF_SERVER]


def client(name: str) -> Client:
    """The client of this name. Raises UsageError."""
    if name not in CLIENTS:
        raise UsageError(f"there is no client {name!r}", f"there are: {', '.join(NAMES)}")
    return CLIENTS[name]
