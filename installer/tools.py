"""What the steps of an installation share: the request, messages, pip, a directory for temporary files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specllama.clock import running_time

from .errors import RESOURCES, InstallError, explained
from .processes import Children
from .progress import Progress
from .request import Request

COMPILE_BYTES, PACKAGES_BYTES = 1_500_000_000, 400_000_000
LOCAL = (
    "install",
    "--no-index",
    "--no-deps",
    "--force-reinstall",
)  # pip's arguments for a wheel on this disk


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of all commands: .venv's pip looks at .venv alone, asks nothing, and compiles Python
    files, else every start would compile them.
    """
    dropped = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONDONTWRITEBYTECODE",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_VERBOSE",
    )
    pip = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1", "PIP_USER": "0"}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return {**kept, **pip, "NINJA_STATUS": "[%f/%t] "}


@dataclass(frozen=True)
class Tools:
    """Runs commands for a request."""

    request: Request
    progress: Progress
    children: Children

    @property
    def work(self) -> Path:
        """The directory for temporary files. In .venv, so that the next call finds what a killed one left."""
        return self.request.venv / "work"

    @property
    def packages(self) -> Path:
        """The directory of the packages in .venv."""
        return next(self.request.venv.glob("lib/python3.*/site-packages"))

    def pip_command(self, *arguments: str | Path) -> list[str | Path]:
        """The command line of .venv's pip."""
        return [self.request.python, "-m", "pip", *arguments]

    def constrained(self, *arguments: str | Path) -> tuple[str | Path, ...]:
        """Arguments of pip with the pinned versions added."""
        return (*arguments, "-c", self.request.root / "constraints.txt")

    def try_pip(self, what: str, *arguments: str | Path) -> tuple[int, str]:
        """Run pip; returns its exit code and output."""
        return self.run(self.pip_command(*arguments), what)

    def call(self, command: Sequence[str | Path], what: str) -> None:
        """Run a command. Raises InstallError if it fails."""
        code, output = self.run(command, what)
        if code:
            raise explained(output, what)

    def run(
        self,
        command: Sequence[str | Path],
        what: str,
        environ: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> tuple[int, str]:
        """Run a command; returns its exit code and output. environ: changes. seconds: see Children.run."""
        work = {"TMPDIR": str(self.work) if self.work.is_dir() else "", **(environ or {})}
        return self.children.run(command, self.ticker(what), environ=work, seconds=seconds)

    def ticker(self, what: str) -> Callable[[], None]:
        """Shows what goes on, and for how many seconds."""
        began = running_time()
        return lambda: self.progress.show(f"{what}, {running_time() - began:.0f} s")

    def check_room(self, needed: int) -> None:
        """Raise InstallError if the disk has less room than this, in bytes."""
        free = shutil.disk_usage(self.request.venv).free
        if free < needed:
            raise InstallError(
                f"not enough room: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free in "
                f"{self.request.venv}",
                "make room, or move the checkout to another disk",
                RESOURCES,
            )
