"""Saves the conversation of a chat as it goes, under a name. What goes wrong is said in one line; the chat
goes on.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from specllama.cli import console
from specllama.cli.chat.file import Saved, as_text
from specllama.cli.chat.library import ChatLibrary, SavedChat, as_name, held, name_from
from specllama.config.places import NOWHERE
from specllama.config.whole_file import write_whole
from specllama.errors import ResourceError, UsageError


class ChatSaver:
    """Where the conversation of a chat is saved. library: None keeps nothing. name: of a new conversation,
    "" to make one from its first question. works: whether all that was to be saved is on the disk; failed:
    whether something is not.
    """

    def __init__(self, library: ChatLibrary | None, name: str = "") -> None:
        self.library, self.name = library, name
        self.works = False
        self.path: Path | None = None
        self._lock: FileLock | None = None
        self._is_new, self._written, self._has_warned = True, "", False

    @property
    def failed(self) -> bool:
        return self._has_warned and not self.works

    def take_up(self, chat: SavedChat) -> None:
        """Save to this conversation from now on. Raises ResourceError where another chat has it."""
        self.close()
        self.name = chat.name
        if self.library is not None:
            try:
                self._lock = held(chat.path, chat.name)
            except OSError as error:
                self._warn(error.strerror or str(error))
                return
            self.path, self._is_new = chat.path, False

    def save(self, saved: Saved) -> None:
        """Write the conversation, where it has changed since. One without turns is not kept."""
        if self.library is None:
            return
        conversation = saved.conversation
        is_empty = not conversation.turns and not conversation.dropped
        try:
            if is_empty:
                self._forget()
                return
            if self.path is None:
                self._begin(self.library, saved)
            assert self.path is not None
            text = as_text(replace(saved, name=self.name))
            if text != self._written:
                write_whole(self.path, text, 0o600, sync=True)
                self.library.make_newest(self.path)
            self._written, self.works, conversation.changed = text, True, False
        except OSError as error:
            self._warn(error.strerror or str(error))
        except ResourceError as error:
            self._warn(error.message)

    def _begin(self, library: ChatLibrary, saved: Saved) -> None:
        """Choose the file of a new conversation. Raises OSError, ResourceError."""
        path = library.new_path()
        first = (saved.conversation.dropped + saved.conversation.turns)[0]
        name = library.unused(self.name or name_from(first.message), path)
        self._lock, self.path, self.name, self._is_new = held(path), path, name, True

    def _forget(self) -> None:
        """Remove the file of a new conversation. Raises OSError."""
        if self.path is not None and self._is_new and self._written:
            self.path.unlink(missing_ok=True)
            self._written, self.works = "", False

    def rename(self, text: str) -> None:
        """Give the conversation another name, which is saved with it. Raises UsageError, ResourceError."""
        name = as_name(text)
        if not name:
            raise UsageError("a name needs a letter or another visible character")
        if self.library is not None and self.library.unused(name, self.path) != name:
            raise UsageError(f"there is a conversation {name!r} already")
        self.name = name

    def close(self) -> None:
        """Let others have the conversation. What is saved next is a new one."""
        if self._lock is not None:
            self._lock.release()
            if self.path is not None and not self.path.exists():
                with contextlib.suppress(OSError):
                    Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock = self.path = None
        self.name, self._written, self.works, self._is_new = "", "", False, True

    def _warn(self, why: str) -> None:
        """Say once that nothing is saved; without a home directory another line has said so."""
        self.works = False
        assert self.library is not None
        if not self._has_warned and NOWHERE not in self.library.path.parents:
            console.warning(f"the conversation is not saved: {self.library.path}: {why}")
        self._has_warned = True
