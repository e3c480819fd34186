"""The API keys of a server that is started or used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    given = list(separated_keys(v.get("api_key", [])))
    if "api_key_file" in v:
        lines = read_text(v["api_key_file"], "api_key_file").splitlines()
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:
            raise UsageError("--api-key-file holds no key")
        given += map(checked_key, in_file)
    return tuple(given)


def separated_keys(texts: Sequence[str]) -> tuple[str, ...]:
    """The keys in texts with commas between them. Raises UsageError."""
    return tuple(checked_key(key.strip()) for text in texts for key in text.split(","))


def checked_key(key: str) -> str:
    """The key. Raises UsageError for one that cannot be sent."""
    if not (0 < len(key) <= _MAX_KEY and key.isprintable()):
        raise UsageError(f"a key must have 1 to {_MAX_KEY} printable characters")
    return key
