"""The API keys of a server that is started or used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specllama.config.text_file import read_text
from specllama.errors import UsageError

KEY_NOTE = (
    "note: other users of this machine can read --api-key in the list of processes; "
    "SPECLLAMA_API_KEY or --api-key-file keeps it secret"
)
_MAX_KEY = 4096  # characters


def keys(v: Mapping[str, Any]) -> tuple[str, ...]:
    """The API keys: those of --api-key, separated by commas as in llama-server, and those of --api-key-file,
    one a line. Raises UsageError, NotFoundError.
    """
    given = [key.strip() for text in v.get("api_key", []) for key in text.split(",")]
    if "api_key_file" in v:
        lines = read_text(v["api_key_file"], "api_key_file").splitlines()
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise UsageError("--api-key-file holds no key")
        given += found
    return tuple(checked_key(key) for key in given)


def checked_key(key: str) -> str:
    """The key. Raises UsageError for one that cannot be sent."""
    if not (0 < len(key) <= _MAX_KEY and key.isprintable()):
        raise UsageError(f"a key must have 1 to {_MAX_KEY} printable characters")
    return key
