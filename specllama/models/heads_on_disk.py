"""Heads next to a model on disk, as `mtp-*.gguf` in the folder of the model or in a folder MTP in it.

Names decide which files are looked at, their headers whether they fit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from specllama.errors import GGUFError, IntegrityError
from specllama.gguf.header import Header, read_model
from specllama.models.quants import ModelFiles, find_heads
from specllama.pair.head_check import check_any

MAX_LOOKED_AT = 16  # heads whose headers are read
_MAX_ENTRIES = 4096  # of a folder
_MARK = re.compile(r"(?:^|(?<=[-._]))(?:mtp|eagle-?3|dflash|dspark|assistant|head|qat)(?=[-._]|$)")


def head_beside(path: str, target: Header) -> tuple[str, str]:
    """(the head for a model, ""), or ("", why the first one that was made for it by its name does not fit).

    path: of the model's first part. ("", "") if there is none. Files that cannot be read are passed over.
    """
    reason = ""
    for head in list(heads_named_for(path))[:MAX_LOOKED_AT]:
        with suppress(GGUFError, IntegrityError, OSError):
            verdict = check_any(target, read_model(head))
            if verdict.ok:
                return head, ""
            reason = reason or f"{os.path.basename(head)}: {verdict.reason}"
    return "", reason


def heads_named_for(path: str) -> Iterator[str]:
    """The files of heads next to a model whose names go with the model's, those next to it first."""
    folder, name = os.path.split(path)
    wanted = _stem(name)
    for directory in (folder, os.path.join(folder, "MTP")):
        for model in find_heads(_names(directory)):
            file = os.path.basename(model.first)
            stem = _stem(file)
            if file != name and (stem in wanted or wanted in stem):
                yield os.path.join(directory, file)


def _names(folder: str) -> list[str]:
    """The files of a folder, with its name in front."""
    names = []
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False):
            if entry.name.lower().endswith(".gguf") and entry.is_file():
                names.append(f"{os.path.basename(folder)}/{entry.name}")
    return names


def _stem(name: str) -> str:
    """What the names of a model and of its head have in common: without quantisation, part and kind."""
    name = re.sub(r"-\d{5}-of-\d{5}\.gguf$", ".gguf", name.lower())
    quant = ModelFiles({1: name}).quant.lower()
    name = name.removesuffix(".gguf")
    if quant:
        name = name.replace(quant, "")
    return re.sub(r"[-._]+", "-", _MARK.sub("", name)).strip("-")
