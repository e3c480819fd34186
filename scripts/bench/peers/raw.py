"""The JSON file of all figures, from which an interrupted comparison continues; replaced after every cell."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench.peers.cells import Cell, Figures

KIND = "specllama.peers/"
SCHEMA = KIND + "4"


class OtherSettings(Exception):
    """The file holds figures that cannot be combined with these; the message says why and what to do."""


class Raw:
    """The figures by cell. path: None keeps them in memory only; settings: what all figures depend on; fresh:
    replace the file instead of reading it. Raises OtherSettings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], fresh: bool = False) -> None:
        self.path, self.settings = path, dict(settings)
        self.figures: dict[Cell, Figures] = {}
        if path is not None and path.exists():
            found = _read(path)
            if not fresh:
                self._load(found)

    def known(self, cell: Cell, key: str) -> Figures | None:
        """The figures of the cell, if they are from the same prompts and files."""
        found = self.figures.get(cell)
        return found if found is not None and found.key == key else None

    def add(self, figures: Figures, about: Mapping[str, Any]) -> None:
        """Adds the figures of a cell and writes the file. about: further content of the file."""
        self.figures[figures.cell] = figures
        if self.path is not None:
            cells = [f.to_dict() for f in self.figures.values()]
            data = {"schema": SCHEMA, "settings": self.settings, "about": dict(about), "cells": cells}
            replace(self.path, json.dumps(data, indent=1) + "\n")

    def _load(self, found: Mapping[str, Any]) -> None:
        if found["schema"] != SCHEMA:
            raise OtherSettings(
                f"{self.path} was measured by another version ({found['schema']}, this is {SCHEMA}); "
                "name another --out, or --fresh to replace it"
            )
        given = found["settings"]
        other = [
            f"{name} {given.get(name)!r}, not {self.settings.get(name)!r}"
            for name in sorted({*given, *self.settings})
            if given.get(name) != self.settings.get(name)
        ]
        if other:
            raise OtherSettings(
                f"{self.path} was measured with other settings ({'; '.join(other)}); "
                "name another --out, or --fresh to replace it"
            )
        figures = [Figures.from_dict(cell) for cell in found["cells"]]
        self.figures = {f.cell: f for f in figures}


def replace(path: Path, text: str) -> None:
    """Writes a file atomically."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise OtherSettings(f"{path} cannot be read ({error}); name another --out") from None
    if not isinstance(found, dict) or not str(found.get("schema")).startswith(KIND):
        raise OtherSettings(f"{path} holds no figures of python -m scripts.bench.peers; name another --out")
    return found
