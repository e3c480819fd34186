"""A client of `launch`: its program, the context it needs, and its settings for a server."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from specllama.config.options import SERVE
from specllama.config.store import cache_dir
from specllama.errors import UsageError
from specllama.option import row, table

AGENT_CONTEXT = 32768  # tokens: an agent's instructions, tools and first files
Variables = Mapping[str, str]
NO_KEY = "unused"  # for clients that insist on a key


def folder() -> Path:
    """Where the files of clients are."""
    return cache_dir() / "launch"


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
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def any_key(self) -> str:
        """The key, or a word where the server needs none."""
        return self.key or NO_KEY


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


# The names of the clients, and where each is.


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


# The options and arguments of `launch`: its own, and those of `serve` for a server that it starts.


# fmt: off
_ARGUMENTS = table("Arguments",
    row("client", "", str, f"which client: {', '.join(NAMES)}", "CLIENT", NAMES, required=True),
    row("arguments", "", list, "the client's own arguments, after --", "-- ARGUMENTS..."),
)
LAUNCHING = table("Launch",
    row("print_only", "--print", bool, "show what would be set and run, and do nothing"),
    row("url", "--url", str, "use this server (default: the one at --host and --port, or a new one)", "URL"),
    row("force", "--force", bool,
        "go on although the context is too small for the client, or the headers of a pair do not fit"),
)
# fmt: on
_MODEL = {"model": "as for serve; of a running server one of the models that it lists"}
OF_SERVER = [replace(o, help=_MODEL.get(o.name, o.help)) for o in SERVE if o.name != "force"]
"""The options that a server which `launch` starts is given."""
LAUNCH = [*_ARGUMENTS, *LAUNCHING, *OF_SERVER]
