"""`specllama trim` as users type it: the file, what is said about it, bad input, and nothing half-written."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from specllama.data import DEMO_HEAD, EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.gguf.header import read_header
from specllama.gguf.trimmed import read_trim
from tests.support import tinygguf, tinymtp
from tests.support.command import MAIN, Command, assert_error

TEXT = "def total(items):\n    return sum(item.price for item in items)\n" * 8


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, shared: Command) -> Path:
    """The embedded draft, trimmed for a text."""
    folder = tmp_path_factory.mktemp("trimmed")
    (folder / "text.py").write_text(TEXT)
    out = folder / "small.gguf"
    result = shared(
        "trim", str(EMBEDDED_DRAFT), str(out), "--keep", "1000", "--texts", str(folder / "text.py")
    )
    assert result.code == 0, result.err
    assert result.out.startswith(f"{out}: 1024 of 4096 tokens; a step reads 816.1 kB instead of 1.3 MB")
    assert "its tokens are 100.0 % of those in the given texts" in result.out
    assert "rows of logits are equal, bit for bit" in result.out
    assert sorted(os.listdir(folder)) == ["small.gguf", "text.py"]
    return out


def test_the_file_names_its_source(small: Path) -> None:
    trim = read_trim(read_header(small))
    assert trim is not None
    data = EMBEDDED_DRAFT.read_bytes()
    assert (trim.source, trim.source_bytes) == (EMBEDDED_DRAFT.name, len(data))
    assert trim.source_sha256 == hashlib.sha256(data).hexdigest()
    assert trim.coverage == 1.0


def test_pair_check_says_what_it_is(shared: Command, small: Path) -> None:
    result = shared("pair-check", str(EMBEDDED_TARGET), str(small))
    assert result.code == 0, result.err
    text = " ".join(result.out.split())
    assert "trimmed from pydoc-draft.gguf, 1024 of 4096 tokens, covers 100.0 % of the texts" in text
    assert shared("pair-check", str(EMBEDDED_TARGET), str(small), "--json").json["draft"]["trimmed"] == {
        "source": EMBEDDED_DRAFT.name,
        "n_kept": 1024,
        "n_vocab": 4096,
        "coverage": 1.0,
    }


def test_a_run_has_the_text_of_a_run_without_it(shared: Command, small: Path) -> None:
    args = "run", "-m", str(EMBEDDED_TARGET), "-n", "24", "--temp", "0", "--no-calibrate", "--json"
    args = (*args, "-p", "Explain os.walk.")
    with_draft = shared(*args, "-md", str(small), "--draft-max", "4", "--drafters", "model").json
    assert with_draft["text"] == shared(*args, "-md", "none").json["text"]
    assert with_draft["n_accept"] > 0


def test_it_is_no_model(shared: Command, small: Path) -> None:
    for args in (("run", "-m", str(small), "-p", "x"), ("pair-check", str(small), str(EMBEDDED_DRAFT))):
        result = shared(*args)
        assert_error(result, 2, "is a trimmed draft, with 1024 of 4096 tokens", "Name the model itself")


def test_a_trimmed_head_is_no_model(command: Command, tmp_path: Path) -> None:
    head = tmp_path / "head.gguf"
    assert command("trim", str(DEMO_HEAD), str(head), "--keep", "2048").code == 0
    result = command("run", "-m", str(head), "-p", "x")
    assert_error(result, 2, "is a trimmed head, with 2048 of 49152 tokens", "as its draft with -md")
    whole = command("run", "-m", str(DEMO_HEAD), "-p", "x")
    assert_error(whole, 2, "is a head without a model", "as its draft with -md")


def test_a_changed_source_is_said(shared: Command, small: Path) -> None:
    source = small.with_name(EMBEDDED_DRAFT.name)
    data = bytearray(EMBEDDED_DRAFT.read_bytes())
    try:
        source.write_bytes(data)
        assert "has changed" not in shared("pair-check", str(EMBEDDED_TARGET), str(small)).out
        data[-1] ^= 1
        source.write_bytes(data)
        result = shared("pair-check", str(EMBEDDED_TARGET), str(small))
        assert result.code == 0
        assert "pydoc-draft.gguf has changed since it was trimmed" in " ".join(result.out.split())
    finally:
        source.unlink()


def test_a_head_inside_a_model_becomes_a_file(command: Command, tmp_path: Path) -> None:
    model = tinymtp.mimo2(tmp_path / "model.gguf", n_vocab=600)
    result = command("trim", str(model), str(tmp_path / "head.gguf"), "--head", "--keep", "320", "--json")
    assert result.code == 0, result.err
    assert (result.json["n_kept"], result.json["n_vocab"], result.json["difference"]) == (320, 600, 0.0)
    report = command("pair-check", str(model), str(tmp_path / "head.gguf"), "--json").json
    assert report["ok"]
    assert (report["head"]["in_target"], report["head"]["n_proposed"]) == (False, 320)


def test_an_eagle3_head_proposes_fewer_tokens(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "head.gguf"
    result = command("trim", str(DEMO_HEAD), str(out), "--keep", "2048", "--type", "q8_0")
    assert result.code == 0, result.err
    assert "2048 of 49152 tokens" in result.out
    header = read_header(out)
    trim = read_trim(header)
    assert trim is not None
    assert trim.label.endswith("2048 of 49152 tokens"), "the vocabulary is the source's everywhere"
    shapes = {t.name: (t.shape, t.type) for t in header.tensors}
    assert shapes["d2t"] == ((2048,), "I64")
    assert shapes["output.weight"] == ((576, 2048), "Q8_0")
    assert header.n_vocab == 49152


D, T = str(EMBEDDED_DRAFT), str(EMBEDDED_TARGET)
BAD: list[tuple[Sequence[str], int, Sequence[str]]] = [
    ((D, "OUT", "--keep", "0"), 2, ["--keep"]),
    ((D, "OUT", "--keep", "-5"), 2, ["--keep"]),
    ((D, "OUT", "--keep", "4097"), 2, ["--keep", "4096"]),
    ((D, "OUT", "--keep", "4096"), 2, ["nothing would change"]),
    ((D, "OUT", "--keep", "100"), 2, ["--keep", "always kept"]),
    ((D, D), 2, ["the draft itself"]),
    ((D, "there.txt"), 2, ["is there already", "--force"]),
    ((D, "-"), 2, ["OUT must be the path of a file", "standard output"]),
    ((D, "."), 2, ["is a folder"]),
    ((D, ""), 2, ["OUT is empty"]),
    ((D, "nowhere/OUT"), 2, ["no such folder"]),
    ((D, "OUT", "--texts", "nothing.txt"), 3, ["nothing.txt"]),
    ((D, "OUT", "--texts", "empty.txt"), 2, ["empty.txt", "no text"]),
    ((D, "OUT", "--texts", "binary.txt"), 2, ["binary.txt"]),
    ((D, "OUT", "--type", "q9_9"), 2, ["--type", "q9_9"]),
    ((D, "OUT", "--type", "q8_1"), 2, ["--type", "q8_1"]),
    ((D, "OUT", "--head"), 2, ["--head", "no head"]),
    ((D, "OUT", "--seen", "nobody"), 3, ["nobody"]),
    (("there.txt", "OUT"), 6, ["there.txt"]),
    (("missing.gguf", "OUT"), 3, ["missing.gguf"]),
]


@pytest.mark.parametrize(("args", "code", "needles"), BAD)
def test_bad_input(
    command: Command, tmp_path: Path, args: Sequence[str], code: int, needles: Sequence[str]
) -> None:
    for name, data in (("there.txt", b"x"), ("empty.txt", b""), ("binary.txt", b"\xff\x00\xfa")):
        (tmp_path / name).write_bytes(data)
    before = sorted(os.listdir(tmp_path))
    assert_error(command("trim", *args), code, *needles)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_trimmed_file_is_not_trimmed_again(shared: Command, small: Path, tmp_path: Path) -> None:
    assert_error(shared("trim", str(small), str(tmp_path / "x.gguf")), 2, "trimmed already")


def test_a_full_disk_leaves_nothing(command: Command, tmp_path: Path) -> None:
    """The limit of the size of files stands for a full disk."""
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))

    result = subprocess.run(
        [*MAIN, "trim", D, str(tmp_path / "x.gguf")],
        capture_output=True, text=True, timeout=60, preexec_fn=limit, env=command.environment(),
    )  # fmt: skip
    assert result.returncode == 8, result.stderr
    assert "cannot be written" in result.stderr
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".gguf", ".tmp"))]


def test_an_interrupt_leaves_nothing(command: Command, tmp_path: Path) -> None:
    model = tinygguf.llama(tmp_path / "model.gguf", n_vocab=600)
    for seconds in (0.3, 0.8, 1.2):
        process = subprocess.Popen(
            [*MAIN, "trim", str(model), str(tmp_path / "x.gguf"), "--keep", "320", "--force"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=command.environment(),
        )  # fmt: skip
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)  # the last: Python has not started yet
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
