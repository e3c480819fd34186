"""Files that clients read, in a folder of `launch`'s own; what `launch --print` shows, without the key."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from specllama.cli.launch.client import Client, ClientSettings
from specllama.cli.launch.server import ServeCommand
from specllama.cli.options import mapped_errors
from specllama.config.store import write_whole
from specllama.errors import ResourceError
from specllama.regular_file import read_regular

SHOWN_KEY = "$SPECLLAMA_API_KEY"
"""Instead of the server's key."""


def write(path: Path, text: str) -> None:
    """Write a file that only the user can read, as a whole. Raises ResourceError."""
    with mapped_errors(ResourceError, f"{path} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, 0o600)


def printed(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> str:
    """The lines. own: the server that would be started, if one would."""
    lines = [f"{shlex.join(['specllama', 'serve', *own.flags])} &"] if own is not None else []
    for path, text in settings.files.items():
        stays = _has(path, text)
        lines.append(f"# {path} " + ("stays as it is" if stays else "becomes:"))
        lines += [] if stays else [f"#   {line}" for line in text.splitlines()]
    lines += [f"unset {name}" for name in settings.removed]
    for name, value in settings.variables.items():
        quoted = f'"{value}"' if value == SHOWN_KEY else shlex.quote(value)
        lines.append(f"export {name}={quoted}")
    lines.append(shlex.join([client.program, *settings.arguments, *arguments]))
    return "".join(f"{line}\n" for line in lines)


def _has(path: Path, text: str) -> bool:
    """Whether the file has this text already."""
    with contextlib.suppress(OSError):
        return read_regular(path) == text.encode()
    return False
