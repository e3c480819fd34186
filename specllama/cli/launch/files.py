"""Files that clients read, in a folder of `launch`'s own; and what `launch --print` shows: a script for the
shell, without the key itself.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from specllama.cli.launch.client import Client, ClientSettings
from specllama.cli.launch.server import ServeCommand
from specllama.config.store import write_whole
from specllama.errors import ResourceError
from specllama.regular_file import read_regular

SHOWN_KEY = "$SPECLLAMA_API_KEY"
"""Instead of the server's key."""


def write(path: Path, text: str) -> None:
    """Write a file that only the user can read, as a whole. Raises ResourceError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, 0o600)
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror or error}") from None


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
    for path, text in settings.files.items():
        stays = _has(path, text)
        yield f"# {path} " + ("stays as it is" if stays else "becomes:")
        if not stays:
            yield from (f"#   {line}" for line in text.splitlines())
    yield from (f"unset {name}" for name in settings.removed)
    for name, value in settings.variables.items():
        quoted = f'"{value}"' if value == SHOWN_KEY else shlex.quote(value)
        yield f"export {name}={quoted}"
    yield shlex.join([client.program, *settings.arguments, *arguments])


def _has(path: Path, text: str) -> bool:
    """Whether the file has this text already."""
    with contextlib.suppress(OSError):
        return read_regular(path) == text.encode()
    return False
