"""The output of commands, as text and as JSON, byte for byte: from fixed inputs, and without a process.

Each report is compared with its file in tests/golden/reports; SPECLLAMA_GOLDEN=write writes them again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specllama.cli.app import run_app
from specllama.cli.doctor.command import examine
from specllama.cli.doctor.command import lines as lines_of_doctor
from specllama.cli.tune.results import TuneResults, lines
from specllama.client.model_info import BuildInfo, DeviceInfo
from specllama.client.tune_messages import MeasuredDraft, TimedWidth
from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.models.memory import available
from tests.support import hub_cache, tinygguf, tinyheads, tinymtp
from tests.support.foreign import permuted
from tests.support.ggufbytes import llama, vocab_metadata, vocabulary, words
from tests.support.paths import ROOT
from tests.unit.cli.test_tune_text import COSTS, GOOD, draft, forecast, results

FOLDER = ROOT / "tests" / "golden" / "reports"
WRITES = os.environ.get("SPECLLAMA_GOLDEN") == "write"  # before tests change the environment
NOW = 1_800_000_000.0
REPO = "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"
FILE = "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf"
BUILD = BuildInfo(
    "0.3.20", "b9000", "0.9.4", ["CPU"], False, True, True, False, {"CPU": ["AVX2", "FMA"]},
    (DeviceInfo("CPU", "A Processor", False, 4 * 10**9, 8 * 10**9), DeviceInfo("GPU0", "A", True, 0, 0)),
    "avx2", "",
)  # fmt: skip


def same(name: str, text: str) -> None:
    """The report is that of its file."""
    file = FOLDER / name
    if WRITES:
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


def pretty(data: dict[str, Any]) -> str:
    """JSON with a line for each key of the object."""
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in data.items())


class Client:
    """In the place of an engine process."""

    build: BuildInfo = BUILD
    pid = os.getpid()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def inspect(self) -> BuildInfo:
        return self.build


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home on a machine of 8 GB without a GPU, where nothing is asked."""
    home = tmp_path / "home"
    home.mkdir()
    for name in [n for n in os.environ if n.startswith(("SPECLLAMA_", "HF_", "XDG_")) or n == "COLUMNS"]:
        monkeypatch.delenv(name)
    variables = {"HOME": home, "SPECLLAMA_CACHE": home / "cache", "SPECLLAMA_DATA": home / "data"}
    for variable, value in {**variables, "HF_HUB_OFFLINE": 1, "HF_HOME": home / "hf"}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.chdir(home)
    monkeypatch.setattr("specllama.client.client.EngineClient", Client)
    monkeypatch.setattr("specllama.cli.doctor.report.EngineClient", Client)
    monkeypatch.setattr(time, "time", lambda: NOW)
    for function, value in (("available_memory", 8 * 10**9), ("gpus_present", []), ("physical_cores", 4)):
        monkeypatch.setattr(available, function, lambda value=value: value)
        for module in ("doctor.report", "models_show"):
            with_it = f"specllama.cli.{module}.{function}"
            monkeypatch.setattr(with_it, lambda value=value: value, raising=False)
    return home


@pytest.fixture
def printed(home: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line; its output, JSON with one key a line, without the names of folders."""

    def run(*line: str) -> str:
        code = run_app(line)
        out, err = capsys.readouterr()
        out = pretty(json.loads(out)) if "--json" in line and out else out
        for path, word in ((EMBEDDED_TARGET.parent, "DATA"), (home, "HOME")):
            out, err = (text.replace(str(path), word) for text in (out, err))
        return f"$ {' '.join(line)}\n{out}{err}exit code {code}\n".replace(str(home), "HOME")

    return run


def calibration(path: Path, age: float, **fields: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 1, **fields}))
    os.utime(path, (NOW - age, NOW - age))


def key(name: str, **more: Any) -> dict[str, Any]:
    return {"model": [name, 10**9, "Q4_0"], "threads": [4, 4], "devices": [["CPU", "A"]], **more}


@pytest.fixture
def stored(home: Path) -> None:
    """Figures of several models, of this version and of others, and what is broken."""
    folder = home / "cache" / "calibration"
    widths = [[1, 0.02, 9], [2, 0.028, 9], [4, 0.04, 9], [8, 0.06, 2]]
    pair = {
        "pair": {"draft": {"model": ["small", 10**8, "Q8_0"]}, "drafters": ["copy", "model"]},
        "learnt": {
            "tables": {
                "copy": {"right": [3.0, 1], "seen": [8, 2]},
                "model": {"right": [70], "seen": [100.0]},
            },
            "priced": {"model": {"steps": {"widths": [[2, 0.004, 9], [1, 0.003, 9]]}}},
        },
    }
    whole_one = {"t1": 0.02, "epsilon": 0.0, "n_rows": 90, "reach": 300, "alike": 63, "unlike": None}
    calibration(
        folder / "a.json", 100.0, key=key("big", lora=[1, 2]), kernels="avx2", **whole_one,
        curves={"0": {"widths": widths}}, change=0.0123, exact_width=8, measured={"comparison": NOW - 7200},
        pairs=[pair, {"pair": {}, "learnt": {}}, 7],
    )  # fmt: skip
    other = {"t1": 0.1, "epsilon": 0.03, "n_rows": 9, "reach": 40, "alike": 1, "unlike": 2}
    calibration(
        folder / "b.json", 9e5, key=key("other"), kernels="", **other, curves={"0": {"widths": [[1, "x"]]}}
    )
    calibration(folder / "c.json", 5000.0, key=7, curves=[], pairs="x", measured=1)
    calibration(folder / "d.json", 90.0, key=key("big"), kernels="avx2", t1="x", epsilon=None)
    (folder / "e.json").write_text("{")
    (folder / "f.broken").write_text("x")


def of_doctor(home: Path) -> dict[str, Any]:
    """The report, with fixed figures where they are those of this machine."""
    report, _ = examine()
    text = json.dumps(report).replace(str(EMBEDDED_TARGET.parent), "DATA").replace(str(home), "HOME")
    fixed = json.loads(text)
    for part in ("cache", "hub"):
        fixed[part]["free_disk"] = 10**11
    fixed["cache"]["bytes"] = 12345
    if "start_seconds" in fixed["engine"]:
        fixed["engine"]["start_seconds"] = 0.5
    fixed["versions"] |= {
        "specllama": "1.0.0",
        "python": "3.11.9",
        "python_path": "python",
        "system": "Linux",
    }
    fixed["machine"] |= {"logical_cpus": 8, "memory_total": 16 * 10**9}
    return dict(fixed)


@pytest.mark.parametrize("state", ["empty", "stored", "wrong"])
def test_doctor(
    state: str, home: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if state == "stored":
        request.getfixturevalue("stored")
    elif state == "wrong":
        (home / "cache").write_text("no folder")
        (home / "data" / "demo").mkdir(parents=True)
        (home / "specllama.toml").write_text("n_threads = 'x'\n")
        monkeypatch.setattr(Client, "build", replace(BUILD, kernels="", kernels_reason="no compiler"))
        monkeypatch.setenv("HF_TOKEN", "secret")
        monkeypatch.setenv("SPECLLAMA_N_THREADS", "4")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_ENDPOINT", "file:///x")
    report = of_doctor(home)
    same(f"doctor-{state}.json", pretty(report))
    ways = [(width, everything) for everything in (False, True) for width in (90, 40)]
    parts = [line for way in ways for line in [*lines_of_doctor(report, *way), "=="]]
    same(f"doctor-{state}.txt", "\n".join(parts) + "\n")


def test_doctor_of_a_machine_with_workers_and_gpus(home: Path) -> None:
    report = of_doctor(home)
    gpu = {"backend": "cuda", "usable": False, "rebuild": "make"}
    memory = [{"free": 10**9, "total": 2 * 10**9}]
    workers = [
        {"endpoint": "a:1", "ok": True, "address": "1.2.3.4", "protocol": "3.1", "devices": memory * 2},
        {"endpoint": "b:2", "ok": False, "error": "no answer"},
    ]
    report["machine"]["gpus"], report["rpc"] = [gpu, {**gpu, "usable": True}], workers
    assert "  GPU      used (cuda)" in [*lines_of_doctor(report, 80, False)]
    report["engine"] |= {"ok": False, "error": "it died"}  # nothing is then said of texts
    report["hub"] |= {"offline": False, "answers": True, "token": "HF_TOKEN", "cache_bytes_complete": False}
    report |= {"ok": False, "problems": [{"what": "it died", "do": "install it", "exit_code": 9}]}
    shown = [*lines_of_doctor(report, 80, False), "", *lines_of_doctor(report, None, True)]
    same("doctor-workers.txt", "\n".join(shown) + "\n")


@pytest.fixture
def files(home: Path) -> None:
    """Models on disk: downloaded, of the user's own, incomplete ones, heads."""
    cache = home / "hf" / "hub"
    hub_cache.put(cache, REPO, FILE, EMBEDDED_TARGET.read_bytes())
    hub_cache.put(cache, "user/repo", "x-Q8_0.gguf", b"no model")
    (cache / "models--user--repo" / "blobs" / f"{'b' * 64}.incomplete").write_bytes(b"x" * 5000)
    own = home / "own"
    own.mkdir()
    shutil.copy(EMBEDDED_DRAFT, own / "small.gguf")
    tinymtp.mimo2(own / "mtp.gguf")
    tinyheads.eagle3(own / "head.gguf", d2t=range(5, 50))
    tinygguf.llama(own / "tiny.gguf")
    (own / "broken.gguf").write_bytes(b"x")


@pytest.mark.usefixtures("files")
def test_models(printed: Callable[..., str]) -> None:
    out = [printed("models", "add", name, f"own/{name}.gguf") for name in ("small", "mtp")]
    out += [
        printed("models", *line)
        for line in (
            (), ("--json",), ("list",), ("verify",), ("verify", "--json"), ("show", "8B"),
            ("show", "8B", "--json"), ("show", "own/small.gguf"),
            ("show", "small", "--json"), ("show", "own/mtp.gguf"),
            ("show", "own/head.gguf"), ("show", "own/head.gguf", "--json"), ("show", "own/tiny.gguf"),
            ("show", "pydoc"), ("show", "pydoc", "--json"), ("show", "70B"), ("show", "nothing"),
            ("rm", "8B", "--json"), ("rm", "user/repo"), ("rm", "8B"),
        )
    ]  # fmt: skip
    same("models.txt", "\n".join(out))


@pytest.mark.usefixtures("files")
def test_lists_in_a_narrow_terminal(printed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    out = [
        printed(*line) for line in (("models",), ("models", "show", "own/mtp.gguf"), ("models", "show", "8B"))
    ]
    same("models-narrow.txt", re.sub(r"(?<= in )HOME\S*", "HOME", "\n".join(out)))


@pytest.mark.usefixtures("files")
def test_pair_check(home: Path, printed: Callable[..., str]) -> None:
    def file(name: str, tokens: list[str], n_layer: int = 1, **vocab: Any) -> None:
        meta = {**vocab_metadata(tokens, **vocab), "tokenizer.chat_template": "x"}
        (home / name).write_bytes(llama(n_layer=n_layer, tokens=tokens, metadata=meta).build())

    file("t.gguf", words(64), n_layer=9)
    file("d.gguf", ["x", *words(40)[1:]])
    file("other.gguf", [*words(4), *[f"x{i}" for i in range(36)]], pre="qwen2")
    file("long.gguf", words(400))
    (home / "vocab.gguf").write_bytes(vocabulary(words(64)).build())
    permuted(EMBEDDED_DRAFT, home / "permuted.gguf", every=3, drop=True)
    (home / "DATA").symlink_to(EMBEDDED_TARGET.parent)  # a name of the same length wherever the package is
    embedded, tiny = f"DATA/{EMBEDDED_TARGET.name}", "own/tiny.gguf"
    out = [
        printed("pair-check", *line)
        for pair in (
            (embedded, f"DATA/{EMBEDDED_DRAFT.name}"), ("t.gguf", "d.gguf"), ("t.gguf", "other.gguf"),
            ("t.gguf", "t.gguf"), ("t.gguf", "long.gguf"), ("t.gguf", "vocab.gguf"),
            (tiny, "own/head.gguf"), ("own/mtp.gguf",),
            (embedded, "permuted.gguf"), (embedded, "permuted.gguf", "--draft-vocab", "auto"),
            ("t.gguf", "own/head.gguf", "--draft-vocab", "auto"), ("8B", "-md", "auto"), (embedded,), (tiny,),
            ("own/head.gguf", tiny), ("own/broken.gguf", tiny), ("8B", "-md", "none"),
            (tiny, "--draft-vocab", "x"),
        )
        for line in (pair, (*pair, "--json"))
    ]  # fmt: skip
    same("pair-check.txt", "\n".join(out))


def of_tune(one: TuneResults) -> str:
    text = "\n".join(lines(one, True, 80))
    return f"{text}\n\n{pretty(one.to_dict())}"


def test_tune() -> None:
    one = results()
    points = [TimedWidth(1, 0.004, 9), TimedWidth(2, 0.005, 8)]
    one.add(replace(draft(1, 0.1, COSTS, forecast(1.62, 0.72)), points=points, translated=True))
    one.add(MeasuredDraft(0, "not enough memory"))
    one.curves.append(replace(one.curves[0], n_ids=4000, left_out=[48, 64], complete=False, spread=None))
    same("tune.txt", of_tune(one))
    early = TuneResults([ModelSettings(path=GOOD)], {}, target=GOOD)
    early.info, early.interrupted = one.info, True
    same("tune-interrupted.txt", of_tune(early))


@pytest.mark.parametrize("name", ["cache", "chats", "config", "ps"])
def test_lists_of_nothing(name: str, printed: Callable[..., str]) -> None:
    same(f"{name}.txt", printed(name) + printed(name, "--json"))
