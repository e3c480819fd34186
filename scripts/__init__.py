"""Modules to run from a checkout (docs/development.md). Ctrl-C ends one without a traceback from here on."""

import sys
import types


def _show(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
