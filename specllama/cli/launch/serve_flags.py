"""The `specllama serve` that is started for a client: its flags, and its keys as variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from specllama.cli.launch import server
from specllama.cli.launch.client import Client
from specllama.cli.launch.options import OF_SERVER
from specllama.config import defaults
from specllama.config.option import OptionValues

KEYS = ("api_key", "api_key_file", "admin_key", "metrics_key")
_SECRETS = ("api_key", "admin_key", "metrics_key")  # which go by variables, not by flags
_DRAIN_SECONDS = 1  # the client has ended before


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """flags: of serve. variables: its secrets. host, port: where it will serve, port 0 for any. model: the
    name that it will show, as far as it is known. n_ctx: 0 for unknown.
    """

    flags: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    host: str
    port: int
    model: str
    n_ctx: int


def serve_command(given: Mapping[str, Any], values: Mapping[str, Any], client: Client) -> ServeCommand:
    """The server for a client. given: the command line of `launch`; values: the same with configuration files
    and environment.
    """
    more: OptionValues = {}
    host = values.get("host", defaults.HOST)
    port = values["port"] if "port" in given else server.free_port(host, values.get("port", defaults.PORT))
    more["port"] = port
    if "n_ctx" not in given and client.n_ctx:
        more["n_ctx"] = max(client.n_ctx, values.get("n_ctx", 0))
    if "drain" not in values:
        more["drain"] = _DRAIN_SECONDS
    flags = [*_flags({**given, **more}), *(["--force"] if given.get("force") else [])]
    named = [*values.get("alias", []), values.get("model", ""), values.get("hf_repo", "")]
    model = next((name for name in named if name and name != "*"), "")
    variables = {
        f"SPECLLAMA_{name.upper()}": ",".join(given[name]) if isinstance(given[name], list) else given[name]
        for name in _SECRETS
        if name in given
    }
    shown = PurePath(model).name.removesuffix(".gguf") or "NAME"
    return ServeCommand(flags, variables, host, port, shown, {**values, **more}.get("n_ctx", 0))


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    for o in OF_SERVER:
        if o.name not in values or o.name in _SECRETS:
            continue
        value = values[o.name]
        if o.kind is bool:
            yield from [o.flags[0]] if value else []
            continue
        for one in value if o.many else [value]:
            yield from (o.flags[0], str(one))
