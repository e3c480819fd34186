"""The corpus: files that the user names, from which drafts are copied (`--memory-from`).

A thread lists and reads them, a few pieces ahead; the engine's thread turns the pieces into tokens while it
is idle, each in about 20 ms. Of a folder in a repository the files that git tracks are read, of another one
all but hidden ones. Links are not followed, and what is no text is passed over.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from specllama.clock import running_time
from specllama.config.text_file import TextProblem, decoded
from specllama.drafters.ngrams import RequestHistory
from specllama.errors import option
from specllama.regular_file import open_regular
from specllama.wording import counted

BITS = 21  # 2**21 tokens: 20 MiB of memory
MOST_FILES, MOST_NAMES = 10_000, 200_000  # that are read, and looked at
MOST_BYTES, MOST_FILE_BYTES = 32 << 20, 4 << 20  # of all files, and of one
PIECE = 16 * 1024  # characters that become tokens at a time
_AHEAD = 4  # pieces that wait for the engine
_WAIT_SECONDS = 0.05  # between two looks whether the thread has a piece
_LINE = 4096  # bytes of a file's name


@dataclass(slots=True)
class CorpusCounts:
    """What was read, and what was passed over. limit: the bound that ended the reading, "" for none."""

    n_files: int = 0
    n_bytes: int = 0
    n_tokens: int = 0
    no_text: int = 0
    too_large: int = 0
    unreadable: int = 0
    links: int = 0
    limit: str = ""

    def line(self) -> str:
        read = f"{counted(self.n_files, 'file')}, {counted(self.n_tokens, 'token')}"
        skipped = {
            "without text": self.no_text,
            f"over {MOST_FILE_BYTES >> 20} MiB": self.too_large,
            "unreadable": self.unreadable,
            "links": self.links,
        }
        rest = ", ".join(f"{n} {why}" for why, n in skipped.items() if n)
        limit = f"; the rest is beyond {self.limit}" if self.limit else ""
        return f"{option('memory_from')}: {read} to draft from{f' (left out: {rest})' if rest else ''}{limit}"


class Corpus:
    """Reads paths into the only ring of `history`. tokenize: in the engine's thread. say: gets a line at the
    end. Nothing is read before `step` or `read` is called.
    """

    def __init__(
        self,
        paths: Sequence[str],
        history: RequestHistory,
        tokenize: Callable[[str], Sequence[int]],
        say: Callable[[str], None],
    ) -> None:
        self.counts = CorpusCounts()
        self._paths, self._ring, self._tokenize, self._say = paths, history.ring(""), tokenize, say
        self._pieces: queue.Queue[str | None] = queue.Queue(_AHEAD)
        self._thread: threading.Thread | None = None
        self._done = False

    @property
    def due_in(self) -> float | None:
        """Seconds until `step` has something to do; None for never."""
        if self._done:
            return None
        return _WAIT_SECONDS if self._thread is not None and self._pieces.empty() else 0.0

    def step(self, wait: float = 0.0) -> None:
        """Add a piece, waiting for it for so many seconds."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="specllama_corpus", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Empty):
            self._add(self._pieces.get(wait > 0, wait or None))

    def read(self, seconds: float) -> None:
        """Read all of it now, for at most so many seconds."""
        until = running_time() + seconds
        while not self._done:
            self.step(_WAIT_SECONDS)
            if running_time() > until and not self._done:
                self._end(f"{seconds:g} s of reading")

    def _add(self, piece: str | None) -> None:
        counts, ring = self.counts, self._ring
        if piece is None:
            self._end(counts.limit)
            return
        ids = self._tokenize(piece)
        room = ring.size - 1 - counts.n_tokens - counts.n_files
        ring.add(ids[: max(0, room)])
        counts.n_tokens += min(len(ids), max(0, room))
        ring.index_pending(len(ids) + 1)
        if len(ids) >= room:
            self._end(f"{ring.size} tokens")

    def _end(self, limit: str) -> None:
        self._done, self.counts.limit = True, limit
        self._say(self.counts.line())

    def _read(self) -> None:
        try:
            for text in read_texts(self._paths, self.counts):
                for piece in pieces(text):
                    self._pieces.put(piece)
                    if self._done:
                        return
        finally:
            if not self._done:
                self._pieces.put(None)


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """A text in pieces of at most `size` characters, which end with a line where they can."""
    begin = 0
    while begin < len(text):
        end = text.rfind("\n", begin, begin + size) + 1 if len(text) - begin > size else len(text)
        end = end if end > begin else begin + size
        yield text[begin:end]
        begin = end


def read_texts(paths: Sequence[str], counts: CorpusCounts) -> Iterator[str]:
    """The texts of files and folders, within all bounds."""
    for path in paths:
        for file in _files(path, counts):
            if counts.n_files >= MOST_FILES:
                counts.limit = f"{MOST_FILES} files"
                return
            text = _text(file, counts)
            if counts.n_bytes > MOST_BYTES:
                counts.limit = f"{MOST_BYTES >> 20} MiB"
                return
            if text:
                counts.n_files += 1
                yield text
            if counts.limit:
                return


def _text(path: str, counts: CorpusCounts) -> str:
    """The text of a file, "" for one that has none, or that cannot be used."""
    try:
        with open_regular(path) as file:
            data = file.read(MOST_FILE_BYTES + 1)
    except OSError:
        counts.unreadable += 1
        return ""
    if len(data) > MOST_FILE_BYTES:
        counts.too_large += 1
        return ""
    try:
        text = decoded(data)
    except TextProblem:
        text = "\0"
    if "\0" in text:
        counts.no_text += 1
        return ""
    counts.n_bytes += len(data)
    return text


def _files(path: str, counts: CorpusCounts) -> Iterator[str]:
    """The file itself, or the files of a folder that are no links and lie within it."""
    if not os.path.isdir(path):
        yield path
        return
    folder = os.path.realpath(path)
    with contextlib.closing(_tracked(folder)) as tracked:
        first = next(tracked, None)
        files = _walked(folder, counts) if first is None else itertools.chain([first], tracked)
        for n, file in enumerate(files):
            if n >= MOST_NAMES:
                counts.limit = f"{MOST_NAMES} names"
                return
            if os.path.realpath(file) != file:
                counts.links += 1
            elif not os.path.isdir(file):
                yield file


def _walked(folder: str, counts: CorpusCounts) -> Iterator[str]:
    """Files and folders below a folder, so that their number is bounded, by name, without hidden ones."""
    todo = [folder]
    while todo:
        try:
            with os.scandir(todo.pop()) as listing:
                shown = (entry for entry in listing if entry.name[0] != ".")
                entries = list(itertools.islice(shown, MOST_NAMES + 1))
        except OSError:
            counts.unreadable += 1
            continue
        entries.sort(key=lambda entry: entry.name)
        todo += [e.path for e in reversed(entries) if e.is_dir(follow_symlinks=False)]
        yield from (entry.path for entry in entries)


def _tracked(folder: str) -> Generator[str, None, None]:
    """The files that git tracks below a folder, if any. Runs nothing that a repository has set."""
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "ls-files", "-z"]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return
    assert process.stdout is not None
    try:
        for name in _names(process.stdout):
            yield os.path.join(folder, os.fsdecode(name))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _names(stream: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while data := stream.read(1 << 16):
        *names, rest = (rest + data).split(b"\0")
        yield from (name for name in names if 0 < len(name) <= _LINE)
        rest = rest if len(rest) <= _LINE else b""
