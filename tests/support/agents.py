"""What tests of agents share: where scripts/agents installs them, and a run of one without the internet."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.rewriting_proxy import RewritingProxy
from tests.support.serving import Server
from tests.support.two_turns import TwoTurns

FOLDER = ROOT / ".agents"
PATH = os.pathsep.join([str(FOLDER / "node_modules/.bin"), str(FOLDER / "python/bin"), os.environ["PATH"]])
MODEL = "pydoc-target"
LINE = "echo one >> file"  # what an agent's shell tool is told to run, twice
SECONDS = 500
_NOWHERE = "http://127.0.0.1:9"
_QUIET = {
    "HTTP_PROXY": _NOWHERE,
    "HTTPS_PROXY": _NOWHERE,
    "NO_PROXY": "127.0.0.1,localhost",
    "DO_NOT_TRACK": "1",
    "CI": "1",
    "NO_COLOR": "1",
}


def needs(program: str) -> list[pytest.MarkDecorator]:
    """The marks of tests of this program."""
    missing = shutil.which(program, path=PATH) is None
    return [
        pytest.mark.long,
        pytest.mark.timeout(SECONDS + 100),
        pytest.mark.skipif(missing, reason=f"there is no {program}: scripts/agents installs it"),
    ]


class Workplace:
    """Folders for an agent, and a server behind a proxy. home: of the agent; work: where it works."""

    def __init__(self, folder: Path, proxy: RewritingProxy) -> None:
        self.home, self.work = folder / "home", folder / "work"
        for made in (self.home, self.work):
            made.mkdir()
        self.proxy, self.url = proxy, proxy.url

    def run(self, *command: str, **variables: str) -> str:
        """Run an agent's command, which must succeed. Returns its stdout."""
        folders = {f"XDG_{kind}_HOME": str(self.home / kind) for kind in ("CONFIG", "DATA", "CACHE", "STATE")}
        environment = {"PATH": PATH, "HOME": str(self.home), "TMPDIR": str(self.home), **_QUIET, **folders}
        done = subprocess.run(
            [shutil.which(command[0], path=PATH) or command[0], *command[1:]],
            env=environment | variables, cwd=self.work, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    @property
    def file(self) -> str:
        """The file that the agent's tool wrote, "" if it wrote none."""
        path = self.work / "file"
        return path.read_text("utf-8") if path.exists() else ""


@contextmanager
def workplace(folder: Path, script: TwoTurns, *flags: str) -> Iterator[Workplace]:
    """A place whose server answers by the script; no request may be refused. flags: of the server."""
    server_home = folder / "server"
    server_home.mkdir()
    every = "--draft-max", "4", "-c", "32768", "-np", "1"
    with Server(server_home, *every, *flags) as server, RewritingProxy(server, script, SECONDS) as proxy:
        yield Workplace(folder, proxy)
        assert proxy.refused == []
