"""`--rpc` and `specllama rpc-worker` with real workers on loopback: where the target is changes no text."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specllama import LLM, SamplingParams
from specllama.errors import NetworkError, UsageError
from specllama.llama.library import KERNELS, Device
from specllama.worker.rpc import chosen
from tests.support import tinygguf
from tests.support.command import Command, assert_error
from tests.support.paths import ROOT
from tests.support.rpc_worker import RpcWorker, rpc_worker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
ASK = ("-p", "What does shutil.copytree do?", "-n", "48", "-c", "512")


@pytest.fixture(scope="module")
def pair(shared: Command) -> Iterator[tuple[RpcWorker, RpcWorker]]:
    with rpc_worker(shared) as first, rpc_worker(shared) as second:
        yield first, second


@pytest.fixture
def both(pair: tuple[RpcWorker, RpcWorker]) -> str:
    return ",".join(worker.endpoint for worker in pair)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A pair in single precision, and settings that keep it so: a worker rounds in another order."""
    root = tmp_path_factory.mktemp("tiny")
    target, draft = tinygguf.llama(root / "target.gguf"), tinygguf.llama(root / "draft.gguf", noise=0.1)
    exact = ("-ctk", "f32", "-ctv", "f32", "-ctkd", "f32", "-ctvd", "f32", "-fa", "off")
    return ("-m", str(target), "-md", str(draft), *exact, "-p", "Once upon a time", "-n", "64", "-c", "256")


class TestText:
    @pytest.mark.parametrize("how", [("--temp", "0"), ("-s", "7", "--temp", "1")])
    def test_it_is_the_same_here_and_there_with_drafts_and_without(
        self, shared: Command, both: str, tiny: tuple[str, ...], how: tuple[str, ...]
    ) -> None:
        here = shared.generate(*tiny, *how, "--draft-max", "0", "--json").json
        there = shared.generate(*tiny, *how, "--rpc", both, "--draft-max", "0", "--json").json
        drafted = shared.generate(*tiny, *how, "--rpc", both, "--draft-max", "5", "--json").json
        assert here["tokens"] == there["tokens"] == drafted["tokens"]
        assert drafted["text"] == here["text"]
        assert drafted["drafted_by"]["model"] > drafted["n_accept"] > 0
        layers = (drafted["target"]["n_gpu_layers"], drafted["draft"]["n_gpu_layers"])
        assert layers == (3, 0)

    @pytest.mark.parametrize("how", [("--temp", "0"), ("-s", "7"), ("-s", "8", "--temp", "1.2")])
    def test_drafts_change_nothing_there(self, shared: Command, both: str, how: tuple[str, ...]) -> None:
        plain = shared.generate(*ASK, *how, "--rpc", both, "--draft-max", "0", "--json").json
        drafted = shared.generate(*ASK, *how, "--rpc", both, "--draft-max", "5", "--json").json
        assert drafted["tokens"] == plain["tokens"]
        assert drafted["n_accept"] > 0
        assert shared.generate(*ASK, *how, "--rpc", both, "--json").json["tokens"] == plain["tokens"]

    def test_the_embedded_pair_says_the_same_up_to_near_ties(self, shared: Command, both: str) -> None:
        ask = (*ASK, "--temp", "0", "--draft-max", "5", "--json", "--logprobs", "2")
        here, there = shared.generate(*ask).json, shared.generate(*ask, "--rpc", both).json
        pairs = zip(here["tokens"], there["tokens"], strict=False)
        differs = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
        if differs is not None:
            best, second = (t["logprob"] for t in here["logprobs"][differs]["top_logprobs"])
            assert best - second < 0.2
        else:
            assert here["text"] == there["text"]

    def test_target_and_draft_may_be_anywhere(
        self, shared: Command, both: str, tiny: tuple[str, ...]
    ) -> None:
        one = both.split(",")[0]
        ask = (*tiny, "--temp", "0", "--draft-max", "5")
        texts = [
            shared.generate(*ask, *where).out
            for where in (
                (),
                ("--rpc", one),
                ("--rpc", both, "-ngl", "2"),
                ("--rpc", both, "-dev", "RPC1", "-devd", "RPC0", "-ngld", "all"),
                ("--rpc", both, "-dev", "none", "-devd", "RPC1"),
            )
        ]
        assert len(set(texts)) == 1

    def test_it_says_where_the_target_is(
        self, shared: Command, pair: tuple[RpcWorker, RpcWorker], both: str
    ) -> None:
        first, second = (worker.endpoint for worker in pair)
        printed = shared.generate(*ASK, "--rpc", both).lines
        assert f"note: 5 of 5 layers of the target are on RPC0 ({first}), RPC1 ({second})" in printed
        only = shared.generate(*ASK, "--rpc", both, "-dev", "RPC1", "-ngl", "3").lines
        assert f"note: 3 of 5 layers of the target are on RPC1 ({second})" in only
        assert "layers of the target" not in shared.generate(*ASK).err

    def test_settings_of_the_environment(self, shared: Command, both: str) -> None:
        assert "layers of the target are on RPC0" in shared.generate(*ASK, env={"SPECLLAMA_RPC": both}).err

    def test_the_python_api(self, shared: Command, both: str) -> None:
        params = SamplingParams(temperature=0, max_tokens=24)
        with LLM(rpc=both.split(","), calibrate=False, n_threads=1, num_speculative_tokens=5) as llm:
            (output,) = llm.generate("def fibonacci(n):", params)
            (plain,) = llm.generate("def fibonacci(n):", params, speculate=False)
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
        same = ("--raw", "-p", "def fibonacci(n):", "--temp", "0", "-n", "24", "--rpc", both, "--json")
        assert shared.generate(*same).json["tokens"] == list(output.outputs[0].token_ids)

    def test_a_bench(self, shared: Command, both: str) -> None:
        args = ("--workloads", "explain", "--runs", "1", "--k", "3", "-n", "8", "--temp", "0", "--json")
        done = shared("bench", "--rpc", both, *args)
        assert done.code == 0, done.err
        assert done.json["schema"].startswith("specllama.bench/")

    def test_a_chat(self, shared: Command, both: str) -> None:
        args = ("chat", "--rpc", both, "-n", "8", "--temp", "0", "--draft-max", "0")
        done = shared(*args, stdin=b"zip\n/draft 9\nzip\n")
        assert done.code == 0, done.err
        assert done.err.count("layers of the target are on RPC0") == 2  # the draft is loaded then


class TestRefusals:
    @pytest.mark.parametrize(
        ("args", "code", "needle"),
        [
            (("--rpc", ""), 2, "--rpc must be host:port"),
            (("--rpc", "a:b"), 2, "--rpc must be host:port"),
            (("--rpc", "[::1]:50052"), 2, "IPv4"),
            (("--rpc", "a:1,a:1"), 2, "twice"),
            (("--rpc", "http://127.0.0.1:50052"), 2, "host:port"),
            (("--rpc",), 2, "--rpc"),
            (("--rpc", "no-such-host.invalid"), 5, "cannot be found"),
            (("--rpc", "127.0.0.1:1"), 5, "nothing listens there"),
        ],
    )
    def test_bad_lists(self, shared: Command, args: tuple[str, ...], code: int, needle: str) -> None:
        done = shared("run", "-p", "zip", *args)
        assert_error(done, code, needle)

    @pytest.mark.parametrize(
        ("args", "needle"),
        [
            (("-dev", "none"), "-dev leaves them out"),
            (("-sm", "row"), "-sm row cannot be used"),
            (("-dev", "RPC7"), "no device 'RPC7'"),
        ],
    )
    def test_settings_that_exclude_each_other_are_refused(
        self, shared: Command, both: str, args: tuple[str, ...], needle: str
    ) -> None:
        done = shared("run", "-p", "zip", "--rpc", both, *args)
        assert_error(done, 2, needle)

    def test_one_worker_by_two_names(self, shared: Command, both: str) -> None:
        one = both.split(",")[0]
        done = shared("run", "-p", "zip", "--rpc", f"{one},{one.replace('127.0.0.1', 'localhost')}")
        assert done.code == 2
        assert "the same worker" in done.lines[0]

    def test_python_names_its_argument(self) -> None:
        for given in ("", "a:b", ["a:1", "a:1"]):
            with pytest.raises(UsageError, match=r"^rpc (must|names)"):
                LLM(rpc=given)
        with pytest.raises(UsageError, match="rpc must be a list of names"):
            LLM(rpc=7)  # type: ignore[arg-type]
        with pytest.raises(NetworkError, match="nothing listens there"):
            LLM(rpc="127.0.0.1:1")

    def test_a_worker_with_too_little_memory_gets_fewer_layers(self, shared: Command) -> None:
        with rpc_worker(shared, "--memory", "0.292") as small:  # 0.268 of it are left to others
            done = shared.generate(*ASK, "--rpc", small.endpoint)
            assert re.search(r"note: [1-4] of 5 layers of the target are on RPC0", done.err)
            refused = shared("run", *ASK, "--rpc", small.endpoint, "-ngl", "all")
            assert_error(refused, 8, "GB on the devices needed")


class TestDoctor:
    def test_it_reports_on_the_workers(self, shared: Command, both: str) -> None:
        done = shared("doctor", "--rpc", f"{both},127.0.0.1:1", "--json", env={"HF_HUB_OFFLINE": "1"})
        assert done.code == 5
        first, second, absent = done.json["rpc"]
        assert [first["endpoint"], second["endpoint"]] == both.split(",")
        assert first["ok"] is second["ok"] is True
        assert first["protocol"] == "7.0.0"
        (memory,) = first["devices"]
        assert 0 < memory["free"] <= memory["total"]
        assert memory["free"] <= psutil.virtual_memory().total
        assert absent["ok"] is False
        assert any(absent["error"] == problem["what"] for problem in done.json["problems"])
        text = shared("doctor", "--rpc", both, env={"HF_HUB_OFFLINE": "1"})
        assert text.code == 0
        assert "RPC workers\n" in text.out
        assert f"  {first['endpoint']}" in text.out

    def test_without_a_list_workers_are_not_mentioned(self, shared: Command) -> None:
        done = shared("doctor", "--json", env={"HF_HUB_OFFLINE": "1"})
        assert "rpc" not in done.json

    def test_a_bad_list(self, shared: Command) -> None:
        assert shared("doctor", "--rpc", "a:b").code == 2


class TestWorker:
    def test_it_says_what_it_serves(self, shared: Command) -> None:
        with rpc_worker(shared, "--memory", "1.5") as worker:
            assert re.fullmatch(r"127\.0\.0\.1:\d+\n", worker.first)
            code, printed = worker.end()
        assert code == 143
        assert f"RPC worker at {worker.endpoint}, protocol 7.0" in printed
        assert "warning" not in printed
        assert re.search(r"CPU: .*1\.5 GB free of 1\.5 GB, threads 1", printed)
        assert f"specllama run --rpc {worker.endpoint}" in printed

    def test_json(self, shared: Command) -> None:
        with rpc_worker(shared, "--json", "-d", "CPU") as worker:
            report = json.loads(worker.first)
        assert report["schema"] == "specllama.rpc-worker/1"
        assert report["n_threads"] == 1
        assert report["cache"] is None
        (cpu,) = report["devices"]
        assert cpu["name"] == "CPU"
        assert 0 < cpu["free"] < cpu["total"]  # what is available, not the whole machine's memory

    def test_another_address_is_a_warning(self, shared: Command) -> None:
        with rpc_worker(shared, "--host", "0.0.0.0") as worker:
            code, printed = worker.end(signal.SIGINT)
        assert code == 130
        (warning,) = [line for line in printed.splitlines() if line.startswith("warning: ")]
        assert "no password and no encryption" in warning
        assert "ssh -N -L" in warning

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_a_signal_ends_it_completely(self, shared: Command, number: signal.Signals) -> None:
        worker = RpcWorker(shared)
        server = worker.server
        code, printed = worker.end(number)
        assert code == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
        assert "Traceback" not in printed
        psutil.wait_procs([server], timeout=5)
        assert not server.is_running()
        with socket.create_server(("127.0.0.1", int(worker.endpoint.split(":")[1]))):
            pass

    def test_a_port_in_use(self, shared: Command, pair: tuple[RpcWorker, RpcWorker]) -> None:
        port = pair[0].endpoint.split(":")[1]
        done = shared("rpc-worker", "--port", port)
        assert_error(done, 8, f"port {port} of 127.0.0.1 is in use")

    @pytest.mark.parametrize(
        ("args", "needle"),
        [
            (("--host", "::1"), "IPv4"),
            (("--host", "192.0.2.1"), "not an address of this machine"),
            (("--host", "no such"), "not an address"),
            (("--port", "65536"), "--port"),
            (("--port", "-1"), "--port"),
            (("--port", "x"), "port"),
            (("-t", "513"), "-t must be"),
            (("-t", "-1"), "-t must be"),
            (("--memory", "0"), "--memory"),
            (("--memory", "nan"), "--memory"),
            (("--memory", "-3"), "--memory"),
            (("-d", "CUDA7"), "no device 'CUDA7'"),
            (("--rpc", "a:1"), "--rpc"),
            (("-m", "main.gguf"), "-m"),
            (("-ports", "1"), "no such option: -ports"),
        ],
    )
    def test_bad_flags(self, shared: Command, args: tuple[str, ...], needle: str) -> None:
        done = shared("rpc-worker", "--port", "0", *args)
        assert_error(done, 2, needle)

    def test_help(self, shared: Command) -> None:
        done = shared("rpc-worker", "--help", env={"COLUMNS": "200"})
        assert done.code == 0
        for flag in ("--host", "--port", "--threads", "--device", "--memory", "--cache", "--json"):
            assert flag in done.out
        assert "neither a password nor encryption" in done.out
        assert "--rpc" in shared("run", "--help").out

    def test_invalid_data_does_not_end_it(self, shared: Command) -> None:
        with rpc_worker(shared) as worker:
            host, port = worker.endpoint.split(":")
            for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x0e", b"\x0e" + b"\xff" * 40, b"\0" * 64, b""):
                with socket.create_connection((host, int(port)), 5) as sock:
                    sock.sendall(data)
            assert shared.generate(*ASK, "--rpc", worker.endpoint).out

    def test_clients_come_and_go(self, shared: Command) -> None:
        long = ("run", "-p", "zip", "--ignore-eos", "-n", "200000", "-c", "65536", "--no-calibrate")
        with rpc_worker(shared) as worker:
            front = shared.start(*long, "--rpc", worker.endpoint, fork=True)
            assert front.stdout is not None
            assert worker.front.stderr is not None
            front.stdout.read(1)
            while b"127.0.0.1 connected" not in (line := worker.front.stderr.readline()):
                assert line
            front.send_signal(signal.SIGINT)
            front.communicate(timeout=10)
            assert front.returncode == 130
            assert re.match(rb"127\.0\.0\.1 left after \d+ s", worker.front.stderr.readline())

    def test_tensors_are_sent_once(
        self, shared: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tinygguf, "N_FF", 60_000)  # ggml keeps what has more than 10 MiB
        model = str(tinygguf.llama(tmp_path / "wide.gguf"))
        ask = ("-m", model, "-md", "none", "-p", "zip", "-n", "12", "--temp", "0", "-c", "256")
        cache = ("--cache", "--port", free_port())
        here = shared.generate(*ask)
        with rpc_worker(shared, *cache) as worker:
            first = shared.generate(*ask, "--rpc", worker.endpoint)
            directory = shared.cache / "rpc" / worker.endpoint.replace(":", "-")
            assert f"tensors are kept in {directory}" in worker.end()[1]
        kept = sorted(directory.glob("*"))
        sizes = [path.stat().st_size for path in kept]
        assert len(kept) >= 4
        assert kept[0].name != "whole.json"
        assert sizes[0] > 10 << 20
        kept[0].write_bytes(kept[0].read_bytes()[: 9 << 20])  # a write that was cut short
        with rpc_worker(shared, *cache) as worker:
            assert not kept[0].exists()
            again = shared.generate(*ask, "--rpc", worker.endpoint)
        assert here.out == first.out == again.out


ROWS = """
import os, sys, time
from specllama.config.load import ModelSettings
from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.data import EMBEDDED_TARGET
from specllama.llama.context import LlamaContext
from specllama.llama.model import LlamaModel
from specllama.llama.rpc import add_worker
from specllama.worker.calibrate import measure
add_worker(sys.argv[1])
model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET), devices=("RPC0",), n_gpu_layers=99))
context = LlamaContext(model, 512)
engine = Engine(context, Fixed([], 0), end_ids=(), clock=time.perf_counter)
ids = model.tokenize("def load(path):" * 20, model.adds_bos, False)
engine.submit(Request(ids, SamplingParams(temperature=0, max_tokens=1), 0))
while engine.busy:
    engine.step()
rows = measure(context, 0, ids, 2.0, time.perf_counter)
print(rows.unlike, rows.epsilon, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not KERNELS.level, reason="a worker is only exact with the kernels")
def test_rows_of_a_worker_are_bit_equal_alone_and_among_others(shared: Command) -> None:
    """This process multiplies nothing: only the worker's kernels matter."""
    environ = os.environ | {"SPECLLAMA_KERNELS": "off", "PYTHONPATH": str(ROOT)}
    with rpc_worker(shared) as worker:
        program = [sys.executable, "-c", ROWS, worker.endpoint]
        done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=60)
        assert done.stdout == "None 0.0\n", done.stderr


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return str(sock.getsockname()[1])


class TestDevices:
    GPU = Device("CUDA0", "a GPU", True, False, 1, 2, 0)
    CPU = Device("CPU", "a processor", False, False, 1, 2, 0)
    BLAS = Device("BLAS", "a library", False, False, 0, 0, 0)

    def test_which_are_served(self) -> None:
        assert chosen([self.CPU, self.GPU, self.BLAS], []) == [self.GPU]
        assert chosen([self.CPU, self.BLAS], []) == [self.CPU]
        assert chosen([self.CPU, self.GPU], ["CPU", "CUDA0", "CPU"]) == [self.CPU, self.GPU]

    def test_none_of_that_name(self) -> None:
        with pytest.raises(UsageError, match="no device 'cpu'"):
            chosen([self.CPU], ["cpu"])

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_there_is_one_list_of_devices(self) -> None:
        """A second copy of the library has devices of its own, which no model is ever loaded on."""
        code = (
            "import re, specllama.llama.model; "
            r"print(len(set(re.findall(r'\S+/libggml\.so\S*', open('/proc/self/maps').read()))))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert (done.stdout, done.stderr) == ("1\n", "")
