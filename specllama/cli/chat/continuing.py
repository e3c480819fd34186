"""`chat --continue`: which conversation, and the options that it was held with."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from specllama.cli import console
from specllama.cli.chat.file import Saved, as_text
from specllama.cli.chat.library import ChatLibrary, SavedChat, as_name, held, name_from
from specllama.config.option import OptionValues
from specllama.config.options import CHAT
from specllama.config.places import NOWHERE
from specllama.config.store import write_whole
from specllama.errors import NotFoundError, ResourceError, UsageError
from specllama.text.terminal import visible

_MODEL, _DRAFT = ("model", "hf_repo"), ("draft_model", "hf_repo_draft")
_OF_DRAFT = ("draft_vocab",)
_OF_MODEL = ("chat_template", "chat_template_file", "tool_format")
_OTHERS = ("n_ctx", "reasoning", "tools")
_FILES = ("model", "draft_model", "chat_template_file", "tools")
_KINDS = {option.name: option.kind for option in CHAT}
_MAX_WARNINGS = 3


def chosen(given: Mapping[str, Any], library: ChatLibrary) -> SavedChat | None:
    """The conversation that the flags name; None for a new one. Raises UsageError for flags that exclude each
    other, NotFoundError, IntegrityError, ResourceError.
    """
    if "continued" not in given:
        _check_name(given, library)
        return None
    for other in ("load", "name"):
        if other in given:
            hint = "/name renames a conversation" if other == "name" else ""
            raise UsageError("cannot be used with --continue", hint, option=other)
    if given["continued"].strip():
        return library.find(given["continued"])
    chat, damaged = library.last()
    for one in damaged[:_MAX_WARNINGS]:
        why = visible(f"{one.name!r}: {one.problem}")
        console.warning(f"a newer conversation cannot be read, {why} (id {one.id})")
    return chat


def _check_name(given: Mapping[str, Any], library: ChatLibrary) -> None:
    if "name" not in given:
        return
    name = as_name(given["name"])
    if not name:
        raise UsageError("needs a letter or another visible character", option="name")
    unused = name
    with contextlib.suppress(ResourceError):  # the chat goes on, and says that it is not saved
        unused = library.unused(name)
    if unused != name:
        raise UsageError(
            f": there is a conversation {name!r} already", f"{command(name)} goes on with it", option="name"
        )


def command(name: str) -> str:
    """The command that goes on with a conversation."""
    quoted = shlex.quote(name)
    return f"specllama chat --continue{'=' if name.startswith('-') else ' '}{quoted}"


def options_of(given: Mapping[str, Any], values: Mapping[str, Any]) -> OptionValues:
    """The options that a conversation is saved with: its models and whether the draft's tokens are
    translated, wherever they are set, and what flags say of
    templates, tools and the context. given: flags; values: merged with files and the environment.
    """
    chosen = {name: values[name] for name in (*_MODEL, *_DRAFT, *_OF_DRAFT) if name in values}
    chosen |= {name: given[name] for name in (*_OF_MODEL, *_OTHERS) if name in given}
    return {name: _absolute(value) if name in _FILES else value for name, value in chosen.items()}


def with_options(given: Mapping[str, Any], chat: SavedChat) -> OptionValues:
    """The flags, and the options of the conversation where no flag says something else. Raises NotFoundError
    where its model is gone and no other one is given, UsageError.
    """
    assert chat.saved is not None
    kept = _checked(chat.saved, chat.path)
    if any(name in given for name in _MODEL):
        kept = {name: value for name, value in kept.items() if name in _OTHERS}
    elif any(name in given for name in _DRAFT):
        kept = {name: value for name, value in kept.items() if name not in _DRAFT}
    if _is_gone(kept.get("model")):
        raise NotFoundError(
            f"the model of the conversation {visible(chat.name)!r} is gone: {kept['model']}",
            f"{command(chat.name)} -m MODEL goes on with another one",
        )
    if _is_gone(kept.get("draft_model")):
        console.note(f"note: the draft of the conversation is gone: {visible(kept.pop('draft_model'))}")
    return {**kept, **given}


def _checked(saved: Saved, path: Path) -> OptionValues:
    """The options that are known. Raises UsageError for values of another kind."""
    known = {
        name: saved.options[name]
        for name in (*_MODEL, *_DRAFT, *_OF_DRAFT, *_OF_MODEL, *_OTHERS)
        if name in saved.options
    }
    for name, value in known.items():
        if type(value) is not _KINDS[name]:
            raise UsageError(f"{path}: options: {name} must be a {_KINDS[name].__name__}, not {value!r:.60}")
    return known


def _absolute(value: str) -> str:
    """The whole path of a file, so that it is found from elsewhere; a name of something else as it is."""
    path = os.path.expanduser(value)
    return os.path.abspath(path) if os.path.exists(path) else value


def _is_gone(value: str | None) -> bool:
    return value is not None and os.path.isabs(value) and not os.path.exists(value)


# Saves the conversation of a chat as it goes, under a name. What goes wrong is said in one line; the chat
# goes on.


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
