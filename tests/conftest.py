"""The order of the tests, and the command and the hub that many of them use."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from specllama.llama import kernel_build, vision_build
from specllama.models.demo import DemoStore
from tests.support.command import Command
from tests.support.examples import examples
from tests.support.forks import OFF, fork_engines, measure_little
from tests.support.hub import LocalHub, local_hub

settings.register_profile("specllama", deadline=None, max_examples=examples(100))  # on any machine
settings.load_profile("specllama")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

DEMO = DemoStore()  # the user's
os.environ["SPECLLAMA_DATA"] = os.devnull  # no demo model: LLM() is the embedded pair
HERE = Path(__file__).parent
SLOWEST_FIRST = (
    *("agents", "browser", "kernel_checks", "soak", "scripts", "faults", "server", "cli", "fuzz", "worker"),
    *("api", "engine", "unit"),
)


def _rank(item: pytest.Item) -> int:
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    return SLOWEST_FIRST.index(folder) if folder in SLOWEST_FIRST else len(SLOWEST_FIRST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long folders first, so that no core is left alone with one at the end."""
    items.sort(key=_rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests, thousands of objects, stay until the end: no collection of garbage needs to scan them."""
    if any(not item.path.is_relative_to(HERE / "unit") for item in session.items):
        compile_kernels()
        if OFF not in os.environ:
            measure_little()
        if os.environ.get("GOMP_SPINCOUNT") == "3000":
            del os.environ["GOMP_SPINCOUNT"]  # of importing llama.cpp: what got it could be no fork
        fork_engines(Command(HERE).environment())
    gc.collect()
    gc.freeze()


def compile_kernels() -> None:
    """Once for the checkout, where their sources changed; otherwise each test's home would compile them."""
    if kernel_build.unsupported():
        return
    with FileLock(Path(sys.prefix) / "kernels.lock"), contextlib.suppress(kernel_build.Unusable):
        if not kernel_build.is_current(kernel_build.OBJECT):
            kernel_build.compile_object(kernel_build.OBJECT)


@pytest.fixture(scope="session")
def vision() -> None:
    """libmtmd, compiled once for the checkout."""
    if not vision_build.kept_source() and vision_build.VARIABLE not in os.environ:
        pytest.skip(f"llama.cpp was not compiled here: name its source in {vision_build.VARIABLE}")
    with FileLock(Path(sys.prefix) / "vision.lock"):
        if not kernel_build.is_current(vision_build.OBJECT, vision_build.key()):
            vision_build.compile_object(vision_build.OBJECT)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """The command with a home of its own; what a test leaves running is ended."""
    found = Command(tmp_path)
    yield found
    found.end_started()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """One home for the tests of a module that write nothing there."""
    found = Command(tmp_path_factory.mktemp("shared"))
    yield found
    found.end_started()


@pytest.fixture(scope="session")
def demo() -> dict[str, str | None]:
    """Changes to a command's environment by which the demo model answers."""
    if not DEMO.is_on_disk():
        pytest.skip("the demo model is not on this disk: specllama pull demo")
    return {"SPECLLAMA_MODEL": None, "SPECLLAMA_DATA": str(DEMO.folder.parent)}


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """A hub on loopback."""
    with local_hub() as running:
        yield running
