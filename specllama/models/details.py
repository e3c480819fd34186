"""What the header of a model on disk says about it, for lists of models; each file is read once."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from specllama.calls.formats import choose
from specllama.errors import SpecllamaError
from specllama.text.reasoning import TAGS

_MOST = 1024  # models whose details are kept


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """quant: as llama.cpp names it. template: the source of the chat template, "" without one; reasons:
    whether it knows reasoning. problem: why the file cannot be used, "" if its header can be read.
    """

    architecture: str = ""
    n_params: int = 0
    quant: str = ""
    n_ctx_train: int = 0
    n_vocab: int = 0
    template: str = ""
    reasons: bool = False
    problem: str = ""


class DetailsReader:
    """Reads and keeps details; threads may share it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], ModelDetails] = {}
        self._lock = threading.Lock()

    def of(self, path: str) -> ModelDetails:
        """The details of a model, by the path of its first part. Takes about 0.1 s for a file that is new."""
        try:
            status = os.stat(path)
            key = (path, status.st_size, status.st_mtime_ns)
        except OSError as error:
            return ModelDetails(problem=f"{path} cannot be read: {error.strerror or error}")
        with self._lock:
            if key not in self._known:
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[key] = _read(path)
            return self._known[key]


def _read(path: str) -> ModelDetails:
    from specllama.gguf.header import read_model  # needs numpy

    try:
        header = read_model(path)
        template = header.chat_template or ""
        return ModelDetails(
            header.architecture,
            header.n_params,
            header.quant,
            header.n_ctx_train,
            header.n_vocab,
            template,
            any(tag in template for tag in TAGS) or choose(template).reasons,
        )
    except SpecllamaError as error:
        return ModelDetails(problem=error.message)
