"""`specllama doctor`: the report of a healthy installation, and of all that can be wrong with one."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import specllama
from specllama.cli.doctor import report as machine
from specllama.cli.doctor.command import _verdict, exactness_verdict, pays_verdict
from specllama.cli.doctor.report import Problem, directory_size, meaning, pays_from, without_secrets
from specllama.llama import kernel_build
from specllama.models.hub.env import hub_cache, is_offline, token_source
from specllama.models.quants import size
from specllama.worker.load_info import features
from tests.support.command import ROOT, Command, Result, assert_error

SECRET = "hf_donotprintthis"
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_HOME": None,
    "XDG_CACHE_HOME": None,
    "HF_HUB_CACHE": None,
    "HF_TOKEN": None,
    "HF_ENDPOINT": None,
}
TITLES = ["versions", "machine", "llama.cpp", "cache", "exactness", "stored", "hub", "configuration"]


@pytest.fixture(scope="module")
def healthy(shared: Command) -> Result:
    """After one run, which leaves a calibration."""
    assert shared("run", "-p", "zip", "-n", "24", "--ignore-eos", "--seed", "1").code == 0
    return shared("doctor", "--json", env=OFFLINE)


def problems(result: Result) -> dict[str, str]:
    return {problem["what"]: problem["do"] for problem in result.json["problems"]}


def test_a_healthy_installation(healthy: Result, shared: Command) -> None:
    assert healthy.code == 0, healthy.err
    assert healthy.err == ""
    report = healthy.json
    assert (report["schema"], report["ok"]) == ("specllama.doctor/1", True)
    assert [p for p in report["problems"] if "GPU" not in p["what"]] == []
    versions, machine, engine = report["versions"], report["machine"], report["engine"]
    assert versions["specllama"] == specllama.__version__
    assert versions["python"] == platform.python_version()
    assert re.fullmatch(r"\d+\.\d+\.\d+", versions["llama_cpp_python"])
    assert versions["llama_cpp"]
    assert versions["ggml"]
    assert machine["cpu"]
    assert 1 <= machine["physical_cores"] <= machine["logical_cpus"]
    assert 0 < machine["memory_available"] <= machine["memory_total"]
    assert engine["ok"]
    assert 0 < engine["start_seconds"] < 60
    assert "CPU" in engine["backends"]
    (cpu,) = [d for d in engine["devices"] if d["name"] == "CPU"]
    assert cpu["description"]
    assert not cpu["gpu"]
    assert cpu["total"] > 0
    assert engine["features"]["CPU"]
    assert {type(engine[name]) for name in ("gpu_offload", "mmap", "mlock", "rpc")} == {bool}
    if not kernel_build.unsupported():
        assert engine["kernels"].removesuffix("+amx") in kernel_build.LEVELS, engine["kernels_reason"]
    assert report["embedded_pair"] == {"ok": True, "n_ctx": 2048}
    demo = report["demo_model"]
    assert (demo["name"], demo["on_disk"]) == ("SmolLM2-135M-Instruct", False)
    assert demo["path"].endswith("/data/demo/SmolLM2-135M-Instruct.Q4_1.gguf")
    cache = report["cache"]
    assert (cache["path"], cache["writable"], cache["broken"]) == (str(shared.cache), True, 0)
    assert cache["calibrations"] == 1
    assert cache["bytes"] > 100
    assert cache["free_disk"] > 0
    (measured,) = report["exactness"]
    assert (measured["model"], measured["quant"]) == ("pydoc-target", "Q4_0")
    assert 0 < measured["t1"] < 1
    assert measured["epsilon"] >= 0
    assert measured["behind"] > 30
    figures = (measured[name] for name in ("epsilon", "behind", "alike", "unlike"))
    assert measured["meaning"] == meaning(*figures)
    hub = report["hub"]
    assert hub["cache"] == str(shared.home / ".cache" / "huggingface" / "hub")
    assert (hub["cache_bytes"], hub["offline"], hub["answers"], hub["token"]) == (0, True, None, "not set")
    variables = [f"SPECLLAMA_{name}" for name in ("CACHE", "DATA", "MODEL", "N_THREADS")]
    assert report["config"] == {"files": [], "models": [], "environment": variables}


@pytest.mark.parametrize("columns", [None, "80", "20"])
def test_the_report_for_people(shared: Command, healthy: Result, columns: str | None) -> None:
    assert healthy.code == 0
    result = shared("doctor", "--all", env={**OFFLINE, "COLUMNS": columns})
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line for line in lines if line in TITLES] == TITLES
    for line in lines:
        if columns and len(line) > int(columns):
            assert len(line.split()) == 1, line  # a path, which is not broken
    words = " ".join(result.out.split())
    for needle in (
        "specllama 0.",
        "backends",
        "CPU:",
        "calibrations 1",
        "pydoc-target Q4_0",
        "t(1)",
        "not asked",
    ):
        assert needle in words
    assert ("no problems found" in words) is not ("a GPU is present" in words)
    assert "\x1b" not in result.out


def test_without_all_there_is_a_verdict_alone(shared: Command, healthy: Result) -> None:
    assert healthy.code == 0
    result = shared("doctor", env={**OFFLINE, "COLUMNS": "80"})
    lines = result.out.splitlines()
    assert lines[0] == f"specllama {specllama.__version__} works"
    labels = [line.split()[0] for line in lines[1:] if line[:2] == "  " and line[2] != " "]
    assert labels == ["GPU", "texts", "drafting"]
    assert len(lines) < 14
    assert max(map(len, lines)) <= 80
    assert not set(lines) & set(TITLES)
    assert lines[-1] == "specllama doctor --all shows versions, devices, caches and figures"


def test_the_verdicts_on_texts_and_drafts() -> None:
    def exact(epsilon: float | None, alike: float | None = None, unlike: float | None = None) -> str:
        return exactness_verdict({"epsilon": epsilon, "behind": 300, "alike": alike, "unlike": unlike})

    assert exact(None) == "not measured yet"
    assert exact(0.0, 4).startswith("exact: ")
    assert exact(0.1, 17, 32).startswith("exact: ")
    assert exact(0.1, 4, 8).startswith("not exact: ")
    assert pays_verdict(None) == "too few decodes timed to tell"
    assert pays_verdict(1.0).startswith("does not pay")
    assert "from an acceptance of 61 %" in pays_verdict(0.61)


@pytest.mark.parametrize("kernels", ["avx512", "avx512+amx"])
def test_the_first_page_is_about_the_kernels_in_use(kernels: str) -> None:
    one = {
        "model": "m",
        "quant": "",
        "threads": 2,
        "behind": 300,
        "alike": None,
        "unlike": None,
        "pays_from": 0.5,
    }
    measured = [{**one, "kernels": "", "epsilon": 0.1}, {**one, "kernels": "avx512", "epsilon": 0.0}]
    computer = {"cpu": "x", "physical_cores": 2, "gpus": []}
    rows = _verdict({"machine": computer, "engine": {"kernels": kernels}, "exactness": measured})
    (texts,) = [text for label, text in rows if label == "texts"]
    assert texts.startswith("exact: ")
    rows = _verdict({"machine": computer, "engine": {"kernels": ""}, "exactness": measured[1:]})
    assert dict(rows)["texts"].startswith("not measured yet"), "without kernels others' figures say nothing"


def test_the_acceptance_from_which_copies_pay_is_that_of_the_stored_times() -> None:
    widths = [[1, 1.0, 50], [2, 1.5, 10], [4, 3.9, 9], [8, 0.1, 1]]
    assert pays_from({"0": {"widths": widths}}) == pytest.approx(0.5)
    assert pays_from({"0": {"widths": [[1, 1.0, 50], [2, 2.1, 9]]}}) == 1.0
    for unknown in (None, {}, {"0": {}}, {"0": {"widths": [[2, 1.0, 9]]}}, {"0": {"widths": [["x"]]}}, [1]):
        assert pays_from(unknown) is None


def test_the_range_of_equal_rows_is_described() -> None:
    assert meaning(None, None) == meaning(None, 300) == "not measured"
    assert meaning(0.0, None) == "not measured", "behind how long a text is not known: a file of before"
    output = "batches of up to 17 rows are bit-equal to single rows after texts of up to 300 tokens"
    assert meaning(0.0, 300, 17) == output
    output += "; wider ones"
    assert meaning(0.1, 300, 17, 32).startswith(output)
    assert meaning(0.0, 300, 17, 32).startswith(output), "rows may differ where the two best ids do not"
    differ = "batched and single rows differ by up to 0.02 after texts of up to 300 tokens"
    output = f"{differ}; near-ties are counted"
    assert meaning(0.0200001, 300, 0, 2) == f"{output}, --exact makes all decodes equally wide"
    assert meaning(0.0200001, 300, 4, 8) == f"{output}, --exact makes all decodes equally wide"


def test_sizes_are_readable() -> None:
    assert [size(n) for n in (None, 0, 999, 1000, 25_300_000_000, 3 * 10**15)] == [
        "?", "0 bytes", "999 bytes", "1.0 kB", "25.3 GB", "3000.0 TB",
    ]  # fmt: skip


def test_the_features_of_a_build() -> None:
    line = "CUDA : ARCHS = 890,900 | USE_GRAPHS = 1 | CPU : AVX2 = 1 | FMA = 0 | REPACK = 1 | "
    assert features(line) == {"CUDA": ["ARCHS=890,900", "USE_GRAPHS"], "CPU": ["AVX2", "REPACK"]}
    assert features("") == features("nonsense | = |") == {}


# Caches


def test_broken_calibrations_are_counted(command: Command) -> None:
    calibration = command.cache / "calibration"
    calibration.mkdir(parents=True)
    contents = {
        "a.json": b"{", "b.json": b"[1]", "c.json": b'{"schema": 99}', "d.broken": b"", "e.json": b"\xff",
        "f.json": b'{"schema": 1}', "h.json": b"[" * 100000,
        "g.json": b'{"schema": 1, "key": {"model": 7}, "t1": "x", "epsilon": true}',
        "i.json": b'{"schema": 1, "key": {"model": [1, 2, {}], "threads": [[]]}, "t1": 1%s}' % (b"0" * 400),
    }  # fmt: skip
    for name, content in contents.items():
        (calibration / name).write_bytes(content)
    result = command("doctor", "--json", env=OFFLINE)
    assert result.code == 0
    assert (result.json["cache"]["calibrations"], result.json["cache"]["broken"]) == (3, 6)
    assert [(e["model"], e["t1"], e["meaning"]) for e in result.json["exactness"]] == 3 * [
        (None, None, "not measured")
    ]
    assert "3, 6 broken and not used" in command("doctor", "--all", env=OFFLINE).out
    assert sorted(f.name for f in calibration.iterdir()) == sorted(contents)  # doctor only looks


def test_half_a_demo_model_is_a_problem(command: Command) -> None:
    path = command.home / "data" / "demo" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    result = command("doctor")
    assert result.code == 0
    assert f"problem: {path} is incomplete" in " ".join(result.raw.decode().split())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written(command: Command) -> None:
    command.cache.mkdir(mode=0o500)
    result = command("doctor", "--json", env=OFFLINE)
    assert (result.code, result.json["cache"]["writable"]) == (0, False)
    (what,) = [p for p in problems(result) if str(command.cache) in p]
    assert "cannot be written" in what


def test_a_cache_that_is_no_directory(command: Command) -> None:
    command.cache.write_text("")
    for cache in (command.cache, command.cache / "deeper" / "still"):
        result = command("doctor", "--json", env={**OFFLINE, "SPECLLAMA_CACHE": str(cache)})
        assert (result.code, result.json["cache"]["writable"]) == (0, False)
        (what,) = [p for p in problems(result) if "nothing is remembered" in p]
        assert "not a directory" in what
        assert "SPECLLAMA_CACHE" in problems(result)[what]
    answered = command("run", "-p", "zip", "-n", "1")
    assert f"note: nothing is remembered between runs: {command.cache} is not a directory" in answered.lines
    assert "remembered" not in command("run", "-p", "zip", "-n", "1", "--no-calibrate").err
    assert command.cache.read_text() == ""


def test_doctor_creates_no_files(command: Command) -> None:
    assert command("doctor", env=OFFLINE).code == 0
    assert list(command.home.iterdir()) == []


def test_the_size_of_the_hub_cache_leaves_links_out(command: Command) -> None:
    blobs, snapshot = command.home / "hub" / "blobs", command.home / "hub" / "snapshots"
    blobs.mkdir(parents=True)
    snapshot.mkdir()
    (blobs / "one").write_bytes(bytes(1000))
    (snapshot / "model.gguf").symlink_to(blobs / "one")
    (snapshot / "round").symlink_to(command.home / "hub")
    (snapshot / "nowhere").symlink_to("nothing")
    assert directory_size(command.home / "hub") == (1000, True)
    result = command("doctor", "--json", env={**OFFLINE, "HF_HUB_CACHE": str(command.home / "hub")})
    assert result.json["hub"]["cache_bytes"] == 1000


def test_where_the_hub_cache_is() -> None:
    home = Path.home() / ".cache"
    assert hub_cache({}) == home / "huggingface" / "hub"
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub_cache({"XDG_CACHE_HOME": "/x", "HF_HOME": "~/h"}) == Path.home() / "h" / "hub"
    assert hub_cache({"HF_HOME": "/h", "HF_HUB_CACHE": "/c", "HUGGINGFACE_HUB_CACHE": "/d"}) == Path("/c")
    assert [is_offline({"HF_HUB_OFFLINE": value}) for value in ("1", "true", "Yes", "0", "")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_where_a_token_comes_from(tmp_path: Path) -> None:
    assert token_source({"HF_HOME": str(tmp_path)}) == "not set"
    assert token_source({"HF_HOME": str(tmp_path), "HF_TOKEN": SECRET}) == "environment"
    (tmp_path / "token").write_text(SECRET)
    assert token_source({"HF_HOME": str(tmp_path)}) == "file"
    assert token_source({"HF_HOME": "/nowhere", "HF_TOKEN_PATH": str(tmp_path / "token")}) == "file"


# The hub


class Hub(ThreadingHTTPServer):
    """Answers with a status; remembers what it was asked."""

    daemon_threads = True

    def __init__(self, status: int, **headers: str) -> None:
        self.status, self.headers = status, headers
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.server.asked.append((self.command, self.path, dict(self.headers)))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(status: int = 200, **headers: str) -> Iterator[Hub]:
    with Hub(status, **headers) as hub:
        threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()


def asking(address: str, **more: str) -> dict[str, str | None]:
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"))
    return {**OFFLINE, **proxies, "HF_HUB_OFFLINE": None, "NO_PROXY": "*", "HF_ENDPOINT": address, **more}


@pytest.mark.parametrize("status", [200, 302, 401, 404])
def test_a_hub_that_answers(shared: Command, status: int) -> None:
    with serving(status, Location="http://127.0.0.1:9/elsewhere") as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        result = shared("doctor", "--json", env=asking(address, HF_TOKEN=SECRET))
    assert result.code == 0
    hub_report = result.json["hub"]
    assert (hub_report["endpoint"], hub_report["answers"], hub_report["status"]) == (address, True, status)
    assert hub_report["token"] == "environment"
    assert not [what for what in problems(result) if "hub" in what]
    ((method, path, headers),) = hub.asked
    assert (method, path) == ("HEAD", "/")
    assert "authorization" not in {name.lower() for name in headers}
    assert SECRET not in result.out + result.err


def test_no_secret_is_printed(shared: Command) -> None:
    with serving() as hub:
        address = f"http://user:{SECRET}@127.0.0.1:{hub.server_port}/path?token={SECRET}"
        for args in (("--all",), ("--json",), ("--all", "--debug")):
            result = shared(
                "doctor", *args, env=asking(address, HF_TOKEN=SECRET, HUGGING_FACE_HUB_TOKEN=SECRET)
            )
            assert result.code == 0
            assert f"http://127.0.0.1:{hub.server_port}/path" in result.out
            assert SECRET not in result.out + result.err
    assert len(hub.asked) == 3
    assert SECRET not in str(hub.asked)


def test_a_hub_that_is_down(shared: Command) -> None:
    with serving(503) as hub:
        busy = shared("doctor", "--json", env=asking(f"http://127.0.0.1:{hub.server_port}"))
    gone = shared("doctor", "--json", env=asking(f"http://127.0.0.1:{hub.server_port}"))
    for result, word, answers in ((busy, "answers 503", True), (gone, "refused", False)):
        assert (result.code, result.json["ok"], result.json["hub"]["answers"]) == (0, True, answers)
        (what,) = [what for what in problems(result) if "hub" in what]
        assert word in what
        assert "network" in problems(result)[what]


def test_a_hub_that_hangs_or_hangs_up(shared: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        begin = time.monotonic()
        hanging = shared("doctor", "--json", env=asking(address))
        assert time.monotonic() - begin < 45  # 3 s, and the engine's start
        assert "gave no answer within 3 s" in hanging.json["hub"]["reason"]
        assert (hanging.code, hanging.json["hub"]["answers"]) == (0, False)
        listening.accept()[0].close()

        def hang_up() -> None:
            connection, _ = listening.accept()
            connection.recv(100)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

        threading.Thread(target=hang_up, daemon=True).start()
        reset = shared("doctor", "--json", env=asking(address))
        assert (reset.code, reset.json["hub"]["answers"]) == (0, False)
        assert "cannot be reached" in reset.json["hub"]["reason"]


@pytest.mark.parametrize(
    "address", ["ftp://x", "huggingface.co", "http://", "http://[::1", "http://x:99999999"]
)
def test_an_invalid_endpoint_is_reported(shared: Command, address: str) -> None:
    result = shared("doctor", "--json", env=asking(address))
    assert (result.code, result.json["hub"]["answers"]) == (0, False)
    (what,) = [what for what in problems(result) if "hub" in what]
    assert "is not an http or https address" in what
    assert "HF_ENDPOINT" in problems(result)[what]


def test_the_hub_is_not_asked_offline(shared: Command) -> None:
    with serving() as hub:
        address = f"http://127.0.0.1:{hub.server_port}"
        assert shared("doctor", env=asking(address, HF_HUB_OFFLINE="1")).code == 0
    assert hub.asked == []


def test_addresses_without_secrets() -> None:
    assert without_secrets("https://u:p@hub.example:8443/a/b?token=x#y") == "https://hub.example:8443/a/b"
    assert without_secrets("http://[::1]:80") == "http://[::1]:80"
    assert without_secrets("hub.example") == without_secrets("http://[") == "(no address)"


# Configuration


def test_configuration_files(command: Command) -> None:
    (command.home / "specllama.toml").write_text("temperature = 0\ntop_k = 5\n")
    user = command.home / "config" / "specllama" / "config.toml"
    if platform.system() == "Linux":
        user.parent.mkdir(parents=True)
        user.write_text("")
    result = command("doctor", "--json", env=OFFLINE)
    files = result.json["config"]["files"]
    assert files[-1] == {
        "path": str(command.home / "specllama.toml"),
        "ok": True,
        "sets": ["temperature", "top_k"],
    }
    assert [f["path"] for f in files[:-1]] == ([str(user)] if user.exists() else [])
    assert result.code == 0
    (command.home / "specllama.toml").write_text('temperature = 0\nhost = "0.0.0.0"\n')
    models = command.home / "models.toml"
    models.write_text('[models.mine]\nrepo = "a/b"\n')
    result = command("doctor", "--json", env=OFFLINE)
    assert (result.code, result.json["config"]["models"]) == (2, [str(models)])
    assert "specllama.toml, line 2: host cannot be set by a project's" in " ".join(problems(result))


def test_broken_configuration(command: Command) -> None:
    (command.home / "specllama.toml").write_text("temperature = 0\n\nno_such = 3\n")
    result = command("doctor", "--json", env={**OFFLINE, "SPECLLAMA_TOP_K": "many"})
    assert (result.code, result.json["ok"]) == (2, False)
    assert command("run", "-p", "zip").code == 2
    text = " ".join(problems(result))
    assert "specllama.toml, line 3: unknown key 'no_such'" in text
    assert "SPECLLAMA_TOP_K must be a whole number" in text
    assert result.json["engine"]["ok"]


# llama.cpp missing, broken or of another version, and what cannot be used


VERSION_SHIM = """
from importlib import metadata
version = metadata.version
def without(name):
    if name == "llama-cpp-python":
        raise metadata.PackageNotFoundError(name)
    return version(name)
metadata.version = without
"""


def shims(home: Path, **files: str) -> dict[str, str]:
    """Modules in front of everything that is installed."""
    for name, source in files.items():
        path = home / "shims" / (name if "." in name else f"{name}/__init__.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return {"PYTHONPATH": os.pathsep.join([str(ROOT), str(home / "shims")])}


@pytest.mark.parametrize(
    ("files", "needle"),
    [
        ({"sitecustomize.py": VERSION_SHIM}, "llama-cpp-python is not installed"),
        (
            {"llama_cpp": "raise ImportError('libllama.so: cannot open shared object file')"},
            "cannot be loaded",
        ),
    ],
)
def test_llama_cpp_does_not_load(command: Command, files: dict[str, str], needle: str) -> None:
    env = {**OFFLINE, **shims(command.home, **files)}
    result = command("doctor", "--json", env=env)
    assert (result.code, result.json["ok"], result.json["engine"]["ok"]) == (9, False, False)
    assert needle in result.json["engine"]["error"]
    assert " llama-cpp-python==" in problems(result)[result.json["engine"]["error"]]
    assert result.json["machine"]["cpu"]
    assert result.json["embedded_pair"]["ok"]
    readable = command("doctor", "--all", env=env)
    assert (readable.code, readable.err) == (9, "")
    for word in (*TITLES, "does not start", needle, "pip install"):
        assert word in readable.out


def test_llama_cpp_of_another_version(command: Command) -> None:
    info = command.home / "shims" / "llama_cpp_python-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.0.1\n")
    result = command("doctor", "--json", env={**OFFLINE, **shims(command.home)})
    assert result.code == 9
    assert result.json["versions"]["llama_cpp_python"] == "0.0.1"
    assert "llama-cpp-python 0.0.1 is installed" in result.json["engine"]["error"]


def test_llama_cpp_that_crashes(command: Command) -> None:
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    result = command("doctor", "--json", env={**OFFLINE, **shims(command.home, llama_cpp=crash)})
    assert result.code == 9
    assert "SIGSEGV" in result.json["engine"]["error"]


def test_an_engine_that_never_starts_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shims(tmp_path, llama_cpp="import time; time.sleep(100)")
    monkeypatch.syspath_prepend(str(tmp_path / "shims"))  # the engine gets the search path of this process
    monkeypatch.setattr(machine, "IDLE_SECONDS", 1.0)
    reported: list[Problem] = []
    begin = time.monotonic()
    assert machine.engine(reported) == {
        "ok": False,
        "error": "the engine process did not start: it used no processor time for 1 s",
    }
    assert time.monotonic() - begin < 60
    assert [problem.exit_code for problem in reported] == [9]


def test_an_embedded_pair_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = machine.EMBEDDED_TARGET.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    monkeypatch.setattr(machine, "EMBEDDED_TARGET", tmp_path / "cut.gguf")
    reported: list[Problem] = []
    assert machine.embedded_pair(reported)["ok"] is False
    assert [problem.exit_code for problem in reported] == [6]
    assert "embedded pair" in reported[0].what


@pytest.mark.parametrize(("usable", "n_problems"), [(False, 1), (True, 0)])
def test_a_gpu_that_the_build_cannot_use(
    monkeypatch: pytest.MonkeyPatch, usable: bool, n_problems: int
) -> None:
    monkeypatch.setattr(machine, "gpus_present", lambda: ["cuda"])
    started = {"ok": True, "devices": [{"name": "CUDA0", "description": "a GPU", "gpu": usable}]}
    reported: list[Problem] = []
    (gpu,) = machine.machine(started, reported)["gpus"]
    assert gpu == {
        "backend": "cuda",
        "usable": usable,
        "rebuild": "SPECLLAMA_BACKEND=cuda scripts/specllama",
    }
    assert len(reported) == n_problems
    assert all(gpu["rebuild"] in problem.do and not problem.exit_code for problem in reported)


def test_bad_input(shared: Command) -> None:
    for args in (("--jsn",), ("extra",), ("--json=1",)):
        result = shared("doctor", *args)
        assert_error(result, 2)
    assert json.loads(shared("doctor", "--json", env=OFFLINE).raw)["schema"] == "specllama.doctor/1"
