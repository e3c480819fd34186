"""Modules to run from a checkout (docs/development.md). Ctrl-C ends one without a traceback from here on."""

import os
import sys
import types


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
if folder := os.environ.pop("LLAMA_CPP_LIB_PATH", ""):  # as specllama/llama/library.py reads it
    os.environ["LLAMA_CPP_LIB_PATH"] = os.path.abspath(os.path.expanduser(folder))
