"""What a client is to `launch`: the program, the context it needs, and its settings for a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

AGENT_CONTEXT = 32768  # tokens: an agent's instructions, tools and first files
Variables = Mapping[str, str]
NO_KEY = "unused"  # for clients that insist on a key


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server and one of its models. url: without /v1. key: "" for none. n_ctx, n_ctx_train: tokens of a
    text, and those that the model was trained on; 0 for unknown.
    """

    url: str
    model: str
    key: str = field(default="", repr=False)
    n_ctx: int = 0
    n_ctx_train: int = 0

    @property
    def api(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def any_key(self) -> str:
        """The key, or a word where the server needs none."""
        return self.key or NO_KEY


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A file that the client reads. change: from its text, None if there is no file, to the new one; raises
    UsageError for a text that it does not understand. own: only `launch` writes it, and no copy is kept.
    entry: what tells the item that `change` puts into a YAML list, which is removed with a server that ends
    with the client.
    """

    path: Path
    change: Callable[[str | None], str]
    own: bool = False
    entry: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How a client is started. variables: to set; removed: to unset; arguments: before the user's own."""

    variables: Variables = field(default_factory=dict)
    removed: Sequence[str] = ()
    arguments: Sequence[str] = ()
    files: Sequence[ClientFile] = ()


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
