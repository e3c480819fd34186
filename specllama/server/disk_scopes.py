"""Access to prompts on disk: the scope of each API key of this server (prefix_disk/scopes.py)."""

from __future__ import annotations

from specllama.prefix_disk.directory import StateDirectory, default_directory
from specllama.prefix_disk.scopes import OPEN, SHARED, scope_of
from specllama.server.settings import ServerSettings
from specllama.server.supervisor import Say


class DiskScopes:
    """Scopes by the name of the owner. A key whose scope needs the secret of the cache directory has none if
    that directory cannot be used: its prompts are not kept. say: gets a line then.
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
        """The directory name for the owner's saved slots: "" for the common directory, None if the owner can
        have none.
        """
        return "" if self._common else self._own.get(owner)
