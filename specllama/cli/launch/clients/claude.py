"""Claude Code: environment variables."""

from __future__ import annotations

from specllama.cli.launch.client import AGENT_CONTEXT, Client, ClientSettings, ModelServer, Variables

_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    "CLAUDE_CODE_SUBAGENT_MODEL",
)
_OTHER_ACCOUNTS = (
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
)


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.any_key,
        **dict.fromkeys(_MODELS, server.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # telemetry, updates, error reports
    }
    if server.n_ctx:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max(1024, server.n_ctx // 4))
    return ClientSettings(variables, removed=_OTHER_ACCOUNTS)


CLAUDE = Client("claude", "npm install -g @anthropic-ai/claude-code", _settings, AGENT_CONTEXT)
