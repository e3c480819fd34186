"""A real Prometheus over a test's server: the one on the path, or the Debian package's, unpacked once into
the user's cache directory. Nothing is installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import platformdirs

PATIENCE = 120  # seconds for a download of 20 MB
START = 30.0  # seconds that Prometheus has to answer
NAMES = ("prometheus", "promtool")


class NotHereError(Exception):
    """There is no Prometheus and no way to get one; the text is the reason."""


@dataclass(frozen=True)
class Programs:
    """Paths of the two programs."""

    prometheus: Path
    promtool: Path

    def complaints(self, text: bytes) -> list[str]:
        """What `promtool check metrics` finds wrong with these metrics."""
        asked = [self.promtool, "check", "metrics"]
        done = subprocess.run(asked, input=text, capture_output=True, timeout=60, check=False)
        found = (done.stdout + done.stderr).decode().splitlines()
        assert done.returncode == 0 or found
        return found


def programs() -> Programs:
    """Raises NotHereError."""
    on_path = [shutil.which(name) for name in NAMES]
    if all(on_path):
        return Programs(*(Path(str(path)) for path in on_path))
    kept = platformdirs.user_cache_path("specllama-tests") / "prometheus"
    if not kept.is_dir():
        _unpack(kept)
    return Programs(*(kept / name for name in NAMES))


def _unpack(kept: Path) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise NotHereError(f"there is no prometheus on the path, and no {tool} to get one")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as name:
        here = Path(name)
        _do(["apt-get", "download", "prometheus"], here)
        (package,) = here.glob("prometheus_*.deb")
        _do(["dpkg-deb", "-x", package.name, "x"], here)
        with contextlib.suppress(OSError):  # another run was faster
            os.rename(here / "x" / "usr" / "bin", kept)


def _do(command: list[str], where: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=where, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotHereError(f"{' '.join(command)} took longer than {PATIENCE} s") from None
    if done.returncode:
        raise NotHereError(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


class Prometheus:
    """A running one, and its query API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The value of an expression now: for each series its labels and its value."""
        asked = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:  # still starting: `until` waits
                raise
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        assert found["data"]["resultType"] == "vector", expression
        series: list[dict[str, Any]] = found["data"]["result"]
        return series

    def value(self, expression: str) -> float | None:
        """The one value of an expression, None where it has none."""
        found = self.query(expression)
        assert len(found) <= 1, (expression, found)
        return float(found[0]["value"][1]) if found else None

    def until(self, expression: str, value: float, seconds: float = START) -> None:
        """Wait until the expression has this value."""
        deadline, last = time.monotonic() + seconds, None
        while time.monotonic() < deadline:
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                if (last := self.value(expression)) == value:
                    return
            time.sleep(0.05)
        raise AssertionError(f"{expression} is {last}, not {value}, after {seconds:g} s")


@contextlib.contextmanager
def scraping(found: Programs, target: str, home: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the target (host:port) twice a second; its data is kept under `home`."""
    home.mkdir()
    (home / "prometheus.yml").write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: specllama, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        found.prometheus,
        f"--config.file={home / 'prometheus.yml'}",
        f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            running = Prometheus(port)
            running.until('up{job="specllama"}', 1)
            yield running
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
