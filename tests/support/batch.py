"""Runs specllama command lines in forks of one process that has imported it, to save import time.

Reads a JSON list of [arguments, changes of the environment, directory] from stdin and writes a list of [exit
code, stdout, stderr], both texts in hexadecimal. Each fork has its own streams, environment and exit code,
like a process started by a shell.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence


def _child(args: Sequence[str], env: Mapping[str, str | None], cwd: str, out: int, err: int) -> None:
    """Run the command in this process; never returns."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(cwd)
        for name, value in env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sys.argv = ["specllama", *args]
        from specllama.__main__ import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - the traceback is for the test
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
        os._exit(code)


def main() -> None:
    for name in ("specllama.cli.app", "specllama.cli.run", "typer._adapters", "pydantic.type_adapter"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)  # for the forks to inherit

    lines, results = json.load(sys.stdin), []
    from specllama.cli.app import COMMANDS

    for command in {args[0] for args, _, _ in lines if args} & COMMANDS.keys():
        COMMANDS[command].table()
        COMMANDS[command].function()
    for args, env, cwd in lines:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                _child(args, env, cwd, out.fileno(), err.fileno())
            _, status = os.waitpid(pid, 0)
            texts = [os.pread(file.fileno(), 1 << 24, 0).hex() for file in (out, err)]
        results.append([os.waitstatus_to_exitcode(status), *texts])
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
