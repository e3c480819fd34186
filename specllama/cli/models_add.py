"""`specllama models add`: a name for a model file of the user's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from specllama.cli import console
from specllama.cli.options import mapped_errors
from specllama.cli.progress import library
from specllama.config.store import write_whole
from specllama.config.toml_file import parse_toml, read_text
from specllama.errors import ResourceError, UsageError
from specllama.gguf.header import read_model
from specllama.models.manifest import NAME_FORM, SCHEMA, ManifestFile, is_own_name, user_path
from specllama.models.own_files import find_own

EXAMPLES = """
Examples:
  specllama models add mine ~/models/main.gguf
  specllama run -m mine -p "What does os.walk do?"

The name is for all commands, the server and Python. It is written into your models.toml (specllama config
says where that is), which can also name whole folders: folders = ["~/models"].
"""


def add(given: Mapping[str, Any]) -> int:
    """Give a file a name; returns 0. Raises UsageError, NotFoundError, IntegrityError, ResourceError."""
    known, name = library(), given["name"]
    path = os.path.abspath(os.path.expanduser(given["file"]))
    read_model(path)
    if not is_own_name(name):
        raise UsageError(f"{name!r} cannot be the name of a model", f"{NAME_FORM}; demo and pydoc are taken")
    if (other := find_own(known.own_files, name)) is not None or known.manifest.find(name) is not None:
        what = other.path if other is not None else "a model of the hub"
        raise UsageError(f"{name} is {what} already", "choose another name")
    file = user_path(known.environ)
    text = read_text(file) if file.exists() else f'schema = "{SCHEMA}"\n'
    entry = f'\n[models."{name}"]\nfile = {_quoted(path)}\n'
    changed = parse_toml(file, text.rstrip("\n") + "\n" + entry)
    ManifestFile(changed).files()
    with mapped_errors(ResourceError, f"{file} cannot be written"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, changed.text)
    console.data(f"{name} is {path}\n")
    return 0


def _quoted(text: str) -> str:
    """A text in TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
