"""What `launch --print` shows: a script for the shell, without the key itself."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from specllama.cli.launch import files
from specllama.cli.launch.client import Client, ClientSettings
from specllama.cli.launch.serve_flags import ServeCommand

SHOWN_KEY = "$SPECLLAMA_API_KEY"
"""Instead of the server's key."""


def printed(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> str:
    """The lines. own: the server that would be started, if one would."""
    return "".join(f"{line}\n" for line in _lines(client, settings, arguments, own))


def _lines(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> Iterator[str]:
    if own is not None:
        yield f"{shlex.join(['specllama', 'serve', *own.flags])} &"
    for file in settings.files:
        before, after = files.changed(file)
        yield f"# {file.path} " + ("stays as it is" if before == after else "becomes:")
        if before != after:
            yield from (f"#   {line}" for line in after.splitlines())
    yield from (f"unset {name}" for name in settings.removed)
    for name, value in settings.variables.items():
        quoted = f'"{value}"' if value == SHOWN_KEY else shlex.quote(value)
        yield f"export {name}={quoted}"
    yield shlex.join([client.program, *settings.arguments, *arguments])
