"""The conversations that chats save as they go: files in a directory of the user's own, found by name.

A chat holds the lock of the conversation that it writes, so that two chats never write one. Knows what is in
a file through conversation.py, and no engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from specllama.cli import console
from specllama.cli.chat.conversation import Conversation, as_text, read
from specllama.cli.formatting import nearest
from specllama.cli.options import mapped_errors
from specllama.config.places import NOWHERE, close_to_others, data_dir
from specllama.config.store import write_whole
from specllama.errors import IntegrityError, NotFoundError, ResourceError, SpecllamaError, UsageError
from specllama.json_types import without_lone_surrogates
from specllama.regular_file import read_regular

MAX_NAME = 80  # characters
_FROM_QUESTION = 48  # characters of a name that is made from a question
_FILE = re.compile(r"[0-9a-f]{16}\.json")
_LEFT_OVER = re.compile(r"\.([0-9a-f]{16}\.json)\.[0-9a-f]{16}\.tmp")
_NAME = re.compile(rb'\{\s*"schema": "[^"]*",\s*"name": ("(?:[^"\\]|\\.)*")')
_HEAD_BYTES = 4096
_STEP = 1_000_000  # ns, which file systems and a float of seconds can tell apart
_OF_ID = 6  # letters of an id that name a conversation to remove
HINT = "specllama chats lists them"


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A conversation in the library. name: that of the file where it has none. changed: seconds since 1970.
    saved: what is in it, None where it cannot be read; problem: why not, "" where it can.
    """

    path: Path
    name: str
    changed: float
    n_bytes: int
    saved: Conversation | None
    problem: str = ""

    @property
    def id(self) -> str:
        """The name of the file, without its ending."""
        return self.path.stem

    @property
    def n_turns(self) -> int:
        """Its turns, those that were dropped included."""
        return len(self.saved.turns) + len(self.saved.dropped) if self.saved is not None else 0

    @property
    def model(self) -> str:
        """The name of the model that it was held with, "" where it is not known."""
        return self.saved.target if self.saved is not None else ""


class ChatLibrary:
    """The conversations in a directory, by default "chats" in the data directory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path if path is not None else data_dir() / "chats"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """The files of conversations, the newest first. Raises ResourceError."""
        files = list[tuple[Path, os.stat_result]]()
        gone = contextlib.suppress(FileNotFoundError)
        with self._possible("read"), gone, os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        files.append((Path(entry.path), entry.stat(follow_symlinks=False)))
        return sorted(files, key=lambda one: (-one[1].st_mtime_ns, one[0].name))

    def chats(self) -> Iterator[SavedChat]:
        """All conversations, the newest first; also those that cannot be read. Raises ResourceError."""
        for path, info in self._files():
            with self._possible("read"), contextlib.suppress(FileNotFoundError):
                yield _chat(path, info)

    def names(self, other_than: Path | None = None) -> list[str]:
        """All names but one, the newest first; quicker than to read the chats. Raises ResourceError."""
        return [_name_in(path) for path, _ in self._files() if path != other_than]

    def last(self) -> tuple[SavedChat, Sequence[SavedChat]]:
        """(The newest conversation, newer ones that cannot be read). Raises NotFoundError, ResourceError."""
        damaged = list[SavedChat]()
        for chat in self.chats():
            if not chat.problem:
                return chat, damaged
            damaged.append(chat)
        why = f" that can be read; {damaged[0].name!r}: {damaged[0].problem}" if damaged else ""
        hint = "specllama chat begins one, which is saved as it goes"
        raise NotFoundError(f"there is no saved conversation{why} in {self.path}", hint)

    def find(self, name: str) -> SavedChat:
        """The conversation of this name, see `named`, one that can be read before others. Raises
        NotFoundError, ResourceError, and IntegrityError where it cannot be read.
        """
        chat = named(name, sorted(self.chats(), key=lambda chat: bool(chat.problem)))
        if chat.problem:
            message = f"the conversation {chat.name!r} cannot be read: {chat.problem}"
            raise IntegrityError(message, f"its file is {chat.path}; specllama chats rm {chat.id} removes it")
        return chat

    def unused(self, name: str, of: Path | None = None) -> str:
        """The name, with a number where another conversation than `of` has it. Raises ResourceError."""
        taken = set(map(_folded, self.names(other_than=of)))
        candidate, n = name, 1
        while _folded(candidate) in taken:
            n += 1
            candidate = f"{name} {n}"
        return candidate

    def make_newest(self, path: Path) -> None:
        """Let a conversation that was saved just now come before those with a later time, which a clock that
        was ahead has left. Raises ResourceError, OSError.
        """
        others = [info.st_mtime_ns for other, info in self._files() if other != path]
        if others and max(others) >= path.stat().st_mtime_ns:
            os.utime(path, ns=(max(others) + _STEP, max(others) + _STEP))

    def new_path(self) -> Path:
        """The file of a new conversation, in a directory that its owner alone may enter. Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        close_to_others(self.path)
        for name in os.listdir(self.path):  # what killed chats have left half-written
            if (match := _LEFT_OVER.fullmatch(name)) is not None:
                with contextlib.suppress(OSError, ResourceError), held(self.path / match[1]):
                    (self.path / name).unlink(missing_ok=True)
        return self.path / f"{secrets.token_hex(8)}.json"

    def remove(self, chats: Iterable[SavedChat]) -> None:
        """Remove conversations. Raises ResourceError, before anything is removed, where a chat has one."""
        with self._possible("changed"), contextlib.ExitStack() as stack:
            removed = list(chats)
            for chat in removed:
                stack.enter_context(held(chat.path, chat.name))
            for chat in removed:
                chat.path.unlink(missing_ok=True)
                _lock_file(chat.path).unlink(missing_ok=True)

    def _possible(self, how: str) -> contextlib.AbstractContextManager[None]:
        return mapped_errors(ResourceError, f"{self.path} cannot be {how}")


def held(path: Path, name: str = "") -> FileLock:
    """The lock of a conversation, until released. Raises ResourceError where another chat has it, OSError."""
    lock = FileLock(_lock_file(path), timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        message = f"the conversation {name or path.stem} is open in another chat"
        raise ResourceError(message, "leave that one first, or continue another conversation") from None
    return lock


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.stem}.lock")


def command(name: str) -> str:
    """The command that goes on with a conversation."""
    quoted = shlex.quote(name)
    return f"specllama chat --continue{'=' if name.startswith('-') else ' '}{quoted}"


def to_remove(name: str, chats: Sequence[SavedChat]) -> SavedChat:
    """As `named`, by the whole name or 6 letters of the id: nothing brings it back. Raises NotFoundError."""
    chat = named(name, chats)
    if _folded(chat.name) != _folded(name) and not (len(name) >= _OF_ID and chat.id.startswith(name)):
        message = f"there is no conversation {name[:MAX_NAME]!r}; {chat.name!r} begins so"
        raise NotFoundError(message, f"give its whole name or its id to remove it: {chat.id}")
    return chat


def named(name: str, chats: Sequence[SavedChat]) -> SavedChat:
    """The conversation of this name, in any case, or the only one that begins so. Raises NotFoundError."""
    wanted = _folded(name)
    same = [chat for chat in chats if chat.name == name] or [
        chat for chat in chats if _folded(chat.name) == wanted
    ]
    begins = [chat for chat in chats if wanted and _folded(chat.name).startswith(wanted)]
    begins += [chat for chat in chats if len(name) >= 4 and chat.id.startswith(name) and chat not in begins]
    if same or len(begins) == 1:
        return (same or begins)[0]
    if begins:
        some = ", ".join(repr(chat.name) for chat in begins[:3])
        more = f" and {len(begins) - 3} more" if len(begins) > 3 else ""
        raise NotFoundError(f"more than one conversation begins with {name[:MAX_NAME]!r}: {some}{more}", HINT)
    near = nearest(name, [chat.name for chat in chats])
    raise NotFoundError(f"there is no conversation {name[:MAX_NAME]!r}{near}", HINT)


def name_from(text: str) -> str:
    """A name made from a question: the beginning of its first line, cut between words."""
    line = next(filter(None, map(as_name, text.splitlines())), "")
    if len(line) > _FROM_QUESTION:
        cut = line[: _FROM_QUESTION + 1]
        line = cut.rpartition(" ")[0] or cut[:-1]
    return line.rstrip(" .,:;!?") or line or "conversation"


def as_name(text: str) -> str:
    """The text as a name: a line without control characters and without blanks around it; may be empty."""
    text = unicodedata.normalize("NFC", without_lone_surrogates(text))
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MAX_NAME].rstrip()


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def _name_in(path: Path) -> str:
    """The name at the beginning of a file, that of the file where there is none; quicker than all of it."""
    with contextlib.suppress(OSError, ValueError):
        match = _NAME.match(read_regular(path, _HEAD_BYTES))
        if match is not None:
            return without_lone_surrogates(str(json.loads(match[1])))
    return path.stem


def _chat(path: Path, info: os.stat_result) -> SavedChat:
    try:
        saved = read(str(path))
    except NotFoundError as error:  # gone meanwhile
        raise FileNotFoundError(2, error.message, str(path)) from None
    except SpecllamaError as error:
        problem = error.message.removeprefix(str(path)).lstrip(": ").removeprefix("cannot be read: ")
        return SavedChat(path, _name_in(path), info.st_mtime, info.st_size, None, problem)
    return SavedChat(path, saved.name or path.stem, info.st_mtime, info.st_size, saved)


# Saves the conversation of a chat as it goes, under a name. What goes wrong is said in one line; the chat
# goes on.


class ChatSaver:
    """Where the conversation of a chat is saved. library: None keeps nothing. works: whether all that was to
    be saved is on the disk; failed: whether something is not.
    """

    def __init__(self, library: ChatLibrary | None) -> None:
        self.library, self.works = library, False
        self.path: Path | None = None
        self._lock: FileLock | None = None
        self._is_new, self._written, self._has_warned = True, "", False

    @property
    def failed(self) -> bool:
        return self._has_warned and not self.works

    def take_up(self, chat: SavedChat) -> None:
        """Save to this conversation from now on. Raises ResourceError where another chat has it."""
        self.close()
        if self.library is not None:
            try:
                self._lock = held(chat.path, chat.name)
            except OSError as error:
                self._warn(error.strerror or str(error))
                return
            self.path, self._is_new = chat.path, False

    def save(self, conversation: Conversation) -> None:
        """Write the conversation, where it has changed; a new one gets a name. One without turns goes."""
        if self.library is None:
            return
        try:
            if not conversation.turns and not conversation.dropped:
                if self.path is not None and self._is_new and self._written:
                    self.path.unlink(missing_ok=True)
                    self._written, self.works = "", False
                return
            if self.path is None:
                self._begin(self.library, conversation)
            assert self.path is not None
            text = as_text(conversation, in_library=True)
            if text != self._written:
                write_whole(self.path, text, 0o600, sync=True)
                self.library.make_newest(self.path)
            self._written, self.works, conversation.changed = text, True, False
        except OSError as error:
            self._warn(error.strerror or str(error))
        except ResourceError as error:
            self._warn(error.message)

    def _begin(self, library: ChatLibrary, conversation: Conversation) -> None:
        """Choose the file and the name of a new conversation. Raises OSError, ResourceError."""
        path = library.new_path()
        first = (conversation.dropped + conversation.turns)[0]
        name = library.unused(conversation.name or name_from(first.message), path)
        self._lock, self.path, self._is_new = held(path), path, True
        conversation.name = name

    def rename(self, conversation: Conversation, text: str) -> None:
        """Give the conversation another name, which is saved with it. Raises UsageError, ResourceError."""
        name = as_name(text)
        if not name:
            raise UsageError("a name needs a letter or another visible character")
        if self.library is not None and self.library.unused(name, self.path) != name:
            raise UsageError(f"there is a conversation {name!r} already")
        conversation.name = name

    def close(self) -> None:
        """Let others have the conversation. What is saved next is a new one."""
        if self._lock is not None:
            self._lock.release()
            if self.path is not None and not self.path.exists():
                with contextlib.suppress(OSError):
                    Path(self._lock.lock_file).unlink(missing_ok=True)
        self._lock = self.path = None
        self._written, self.works, self._is_new = "", False, True

    def _warn(self, why: str) -> None:
        """Say once that nothing is saved; without a home directory another line has said so."""
        self.works = False
        assert self.library is not None
        if not self._has_warned and NOWHERE not in self.library.path.parents:
            console.warning(f"the conversation is not saved: {self.library.path}: {why}")
        self._has_warned = True
