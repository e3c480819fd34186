"""Puts models into a cache in Hugging Face's layout, as downloads do."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def put(cache: Path, repo: str, file: str, content: bytes, commit: str = "a" * 40) -> Path:
    """A file of a repository; its path in the snapshot. The newest commit is `main`."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(content).hexdigest()
    link = folder / "snapshots" / commit / file
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    if not link.is_symlink():
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / "main").write_text(commit)
    return link
