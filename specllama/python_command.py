"""The command line of another Python process with the search path of this one.

A module must be the same file there. PYTHONPATH cannot say so: what it names comes before the standard
library, and a file `uuid.py` among the installed packages would take the place of Python's own.
"""

from __future__ import annotations

import os
import sys

_CODE = (
    "import runpy, sys; sys.path[:] = {path!r}; del sys.argv[1]; "
    "runpy.run_module({module!r}, None, '__main__', True)"
)


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package as a program. Its name ends the line for people who list
    processes.
    """
    path = [os.path.abspath(entry) for entry in sys.path]  # "" is the current directory
    return [sys.executable, "-P", "-c", _CODE.format(path=path, module=module), module, *arguments]
