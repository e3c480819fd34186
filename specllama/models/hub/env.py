"""Hugging Face's environment variables: the cache, the token, the hub's address, offline mode."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from specllama.config.places import NOWHERE

DEFAULT_ENDPOINT = "https://huggingface.co"


def hub_home(environ: Mapping[str, str]) -> Path:
    """Hugging Face's directory, which holds cache and token unless other variables override it."""
    base = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return _path(environ.get("HF_HOME") or os.path.join(base, "huggingface"))


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The cache of downloads, shared by all tools."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return _path(named) if named else hub_home(environ) / "hub"


def hub_endpoint(environ: Mapping[str, str]) -> str:
    """The hub's address without a trailing slash."""
    return (environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")


def token_source(environ: Mapping[str, str]) -> str:
    """Where the token comes from: "environment", "file" or "not set"."""
    if any(environ.get(name, "").strip() for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")):
        return "environment"
    file = _path(environ["HF_TOKEN_PATH"]) if environ.get("HF_TOKEN_PATH") else hub_home(environ) / "token"
    with contextlib.suppress(OSError):
        return "file" if file.stat().st_size else "not set"
    return "not set"


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the user forbids requests to the hub."""
    value = environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def _path(text: str) -> Path:
    path = Path(os.path.expandvars(os.path.expanduser(text)))
    return NOWHERE / "huggingface" if path.parts[:1] == ("~",) else path
