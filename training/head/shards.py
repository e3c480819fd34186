"""Texts of the target on disk, with layer inputs and the most probable next tokens of every row.

A shard is four files next to each other: NAME.jsonl with one line a text, and the rows of all texts one after
the other in NAME.tokens, NAME.features and NAME.top. A line is written last, so that rows without one, which
an interruption leaves, are overwritten. Knows no model.
"""

from __future__ import annotations

import fcntl
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray

N_TOP = 12  # next tokens kept of a row
TOP = np.dtype([("id", np.uint16, N_TOP), ("logit", np.float16, N_TOP)])


@dataclass(frozen=True)
class Entry:
    """A text. start: its first row in the shard; n_prompt: its rows before the answer; key: of its prompt and
    temperature.
    """

    key: str
    kind: str
    temperature: float
    start: int
    n_prompt: int
    n: int


class Text:
    """The rows of a text. tokens: (n,); features: (n, width), inputs of layers; top: (n,), ids and logits of
    the most probable next tokens, zeros in rows before the last of the prompt.
    """

    def __init__(
        self, tokens: NDArray[np.uint16], features: NDArray[np.float16], top: NDArray[np.void]
    ) -> None:
        self.tokens, self.features, self.top = tokens, features, top


def _entries(path: Path) -> list[Entry]:
    if not path.exists():
        return []
    whole = path.read_text().rpartition("\n")[0]  # the last line may be incomplete
    return [Entry(**json.loads(line)) for line in whole.splitlines()]


class ShardWriter:
    """Appends texts to a shard. width: numbers of a row of features. Raises BlockingIOError if another
    writer has the shard.
    """

    def __init__(self, folder: Path, name: str, width: int) -> None:
        lines = folder / f"{name}.jsonl"
        self._lines: TextIO = lines.open("a")
        try:
            fcntl.flock(self._lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lines.close()
            raise
        entries = _entries(lines)
        self.keys = {entry.key for entry in entries}
        self._n = sum(entry.n for entry in entries)
        self._lines.truncate(0)
        self._lines.writelines(json.dumps(asdict(entry)) + "\n" for entry in entries)
        self._lines.flush()
        sizes = {"tokens": 2, "features": 2 * width, "top": TOP.itemsize}
        self._files: dict[str, BinaryIO] = {}
        for part, size in sizes.items():
            path = folder / f"{name}.{part}"
            path.touch()
            file = path.open("r+b")
            file.truncate(self._n * size)
            file.seek(0, 2)
            self._files[part] = file

    def add(self, key: str, kind: str, temperature: float, n_prompt: int, text: Text) -> None:
        rows = {
            "tokens": text.tokens.astype(np.uint16),
            "features": text.features.astype(np.float16),
            "top": text.top.astype(TOP),
        }
        for part, array in rows.items():
            self._files[part].write(array.tobytes())
            self._files[part].flush()
        entry = Entry(key, kind, temperature, self._n, n_prompt, len(text.tokens))
        self._n += entry.n
        self.keys.add(key)
        self._lines.write(json.dumps(asdict(entry)) + "\n")
        self._lines.flush()

    def close(self) -> None:
        for file in (*self._files.values(), self._lines):
            file.close()


class Shard:
    """A shard to read; its features stay on disk until they are used. width: numbers of a row of features."""

    def __init__(self, folder: Path, name: str, width: int) -> None:
        self.entries = _entries(folder / f"{name}.jsonl")
        n = sum(entry.n for entry in self.entries)
        self.tokens = np.fromfile(folder / f"{name}.tokens", np.uint16, n)
        self.top = np.fromfile(folder / f"{name}.top", TOP, n)
        path = folder / f"{name}.features"
        self.features = np.memmap(path, np.float16, "r", shape=(n, width)) if n else np.zeros((0, width))

    def text(self, entry: Entry) -> Text:
        rows = slice(entry.start, entry.start + entry.n)
        return Text(self.tokens[rows], self.features[rows], self.top[rows])
