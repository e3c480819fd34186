"""The options and arguments of `launch`: its own, and those of `serve` for a server that it starts."""

from __future__ import annotations

from dataclasses import replace

from specllama.cli.launch.names import NAMES
from specllama.config.option import Option, row, table
from specllama.config.options import SERVE

_ARGUMENTS = [
    Option(
        "client", (), str, f"which client: {', '.join(NAMES)}", "Arguments", "CLIENT",
        stored=False, completes=NAMES, required=True,
    ),
    Option(
        "arguments", (), str, "the client's own arguments, after --", "Arguments", "-- ARGUMENTS...",
        many=True, stored=False,
    ),
]  # fmt: skip
LAUNCHING = table(
    "Launch",
    row("print_only", "--print", bool, "show what would be set and run, and do nothing"),
    row("url", "--url", str, "use this server (default: the one at --host and --port, or a new one)", "URL"),
    row(
        "force",
        "--force",
        bool,
        "go on although the context is too small for the client, or the headers of a pair do not fit",
    ),
    stored=False,
)
_MODEL = {"model": "as for serve; of a running server one of the models that it lists"}
OF_SERVER = [replace(o, help=_MODEL.get(o.name, o.help)) for o in SERVE if o.name != "force"]
"""The options that a server which `launch` starts is given."""
LAUNCH = [*_ARGUMENTS, *LAUNCHING, *OF_SERVER]
