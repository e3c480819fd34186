"""Whose prompts on disk are whose: the scope of each API key of this server (prefix_disk/scopes.py)."""

from __future__ import annotations

from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.prefix_disk.scopes import OPEN, SHARED, scope_of
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say


class DiskScopes:
    """Scopes by the names of owners. Where a key needs one and there is no secret for it, because the
    directory cannot be used, it has none: nothing of it is kept. say: gets a line then.
    """

    def __init__(self, settings: ServerSettings, say: Say) -> None:
        self._common = SHARED if settings.share_cache else "" if settings.keys else OPEN
        self._own: dict[str, str] = {}
        if self._common or not (settings.load.cache_disk or settings.slot_save_path):
            return
        directory = StateDirectory(default_directory(), say)
        try:
            directory.open(create=True)
        except OSError as error:
            why = error.strerror or str(error)
            say(f"prompts are not kept on disk: {directory.path}: {why}")
            return
        for i, key in enumerate(settings.keys, 1):
            self._own[f"key {i}"] = scope_of(key, directory.secret)

    def of(self, owner: str) -> str:
        """The scope of an owner, "" for none."""
        return self._common or self._own.get(owner, "")

    def folder(self, owner: str) -> str | None:
        """The name of the directory for the owner's saved slots, "" for none of its own; None where it cannot
        have one.
        """
        return "" if self._common else self._own.get(owner)
