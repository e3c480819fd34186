"""Other Python processes with the search path of this one, and the engine process, which starts before what
its front needs is imported: starting it takes longer.

A module must be the same file there. PYTHONPATH cannot say so: what it names comes before the standard
library, and a file `uuid.py` among the installed packages would take the place of Python's own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping

_CODE = (
    "import runpy, sys; sys.path[:] = {path!r}; del sys.argv[1]; "
    "runpy.run_module({module!r}, None, '__main__', True)"
)
_early: subprocess.Popen[bytes] | None = None  # an engine process that nobody uses yet


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package. Its name ends the line, for lists of processes."""
    path = [os.path.abspath(entry) for entry in sys.path]  # "" is the current directory
    return [sys.executable, "-P", "-c", _CODE.format(path=path, module=module), module, *arguments]


def start_engine_early() -> None:
    """Start the engine process that the next `engine_process` returns. Errors are left to that one."""
    global _early
    with contextlib.suppress(OSError):
        _early = _start_engine({})


def engine_process(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A new engine process, or the one that was started early. environ: variables to set. Raises OSError."""
    global _early
    early, _early = _early, None
    if early is not None and not environ:
        return early
    if early is not None:
        _close(early)
    return _start_engine(environ)


def close_early_engine() -> None:
    """Let an engine process end that was started early and is not used, without waiting for it."""
    global _early
    early, _early = _early, None
    if early is not None:
        _close(early)


def _close(process: subprocess.Popen[bytes]) -> None:
    """It exits when its standard input ends."""
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _start_engine(environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A session of its own: a terminal's Ctrl-C reaches only the front.
    return subprocess.Popen(
        module_command("specllama.worker.main"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={
            "OPENBLAS_NUM_THREADS": "1",  # numpy starts one for each core, and none is needed
            **os.environ,
            **environ,
            "GGML_NO_BACKTRACE": "1",
        },
    )
