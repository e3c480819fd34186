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
_KNOWN_CONTEXT = 2 * AGENT_CONTEXT
"""From here on it gets the context; without one it assumes a million tokens. In a smaller one it would
shorten the conversation after its first request, since it keeps 13,000 tokens and the longest answer free.
There it shortens when the server says that the context is full.
"""


def _settings(server: ModelServer, _environ: Variables) -> ClientSettings:
    variables = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.any_key,
        **dict.fromkeys(_MODELS, server.model),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # telemetry, updates, error reports
    }
    if server.n_ctx:
        variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(max(1024, server.n_ctx // 4))
    if server.n_ctx >= _KNOWN_CONTEXT:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(server.n_ctx)
    return ClientSettings(variables, removed=_OTHER_ACCOUNTS)


CLAUDE = Client("claude", "npm install -g @anthropic-ai/claude-code", _settings, AGENT_CONTEXT)
