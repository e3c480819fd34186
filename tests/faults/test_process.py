"""Front and engine process: if one dies or hangs, the other one notices at once, and no process is left."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from specllama import wire
from specllama.client import protocol as m
from specllama.client.client import EngineClient
from specllama.client.stream import fold
from specllama.client.tune_messages import Heartbeat
from specllama.config.load import LoadSettings, ModelSettings
from specllama.data import EMBEDDED_DRAFT, EMBEDDED_TARGET
from specllama.errors import EngineDiedError, EngineError, IntegrityError, UsageError
from tests.support.command import Command
from tests.support.generations import generate
from tests.support.loads import load_info
from tests.support.processes import SOON, child_of, is_gone, use_cpu

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")
LONG = ("run", "-p", "zip", "--ignore-eos", "-n", "200000", "-c", "65536", "--seed", "1", "--no-calibrate")
SETTINGS = LoadSettings(
    target=ModelSettings(path=str(EMBEDDED_TARGET), n_threads=1, n_ctx=2048),
    draft=ModelSettings(path=str(EMBEDDED_DRAFT), n_threads=1, n_ctx=2048),
    calibrate=False,
)


def first_output(front: subprocess.Popen[bytes]) -> bytes:
    """The first output, as soon as it arrives."""
    assert front.stdout is not None
    return front.stdout.read(1)


class TestSignals:
    def test_a_killed_engine_gives_one_line_and_exit_code_9(self, command: Command) -> None:
        front = command.start(*LONG)
        first = first_output(front)
        child_of(front.pid).kill()
        out, err = front.communicate(timeout=SOON)
        assert front.returncode == 9
        assert len(first + out) > 0
        printed = [
            line for line in err.decode().splitlines() if not line.startswith(("speculation on", "note: "))
        ]
        assert len(printed) == 1
        assert printed[0].startswith("error: the engine process was ended by SIGKILL")

    def test_an_engine_killed_during_the_load(self, command: Command) -> None:
        front = command.start(*LONG)
        child_of(front.pid).kill()
        out, err = front.communicate(timeout=SOON)
        assert (front.returncode, out) == (9, b"")
        assert err.startswith(b"error: the engine process was ended by SIGKILL")
        assert b"Traceback" not in err

    @pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.25, None])
    def test_a_killed_front_leaves_no_engine(self, command: Command, delay: float | None) -> None:
        front = command.start(*LONG)
        engine = child_of(front.pid)
        if delay is None:
            first_output(front)
        else:
            time.sleep(delay)
        front.kill()
        front.communicate(timeout=SOON)
        assert is_gone(engine)

    def test_first_ctrl_c_keeps_the_text_and_prints_the_statistics(self, command: Command) -> None:
        front = command.start(*LONG)
        first = first_output(front)
        engine = child_of(front.pid)
        front.send_signal(signal.SIGINT)
        out, err = front.communicate(timeout=SOON)
        text, printed = (first + out).decode(), err.decode()
        assert front.returncode == 130
        assert text.endswith("\n")
        n_predict = int(re.search(r"^(\d+) tokens at", printed, re.M)[1])
        assert 0 < n_predict < 200_000
        assert "Traceback" not in printed
        assert is_gone(engine)
        plain = command.generate(
            "-p", "zip", "--ignore-eos", "-n", str(n_predict), "--seed", "1", "-c", "65536"
        )
        assert plain.out == text

    def test_ctrl_c_with_json_is_still_one_object(self, command: Command) -> None:
        front = command.start(*LONG, "--json")
        assert front.stderr is not None
        while front.stderr.readline().startswith(b"note: "):
            pass
        use_cpu(child_of(front.pid), seconds=0.3)
        front.send_signal(signal.SIGINT)
        out, _ = front.communicate(timeout=SOON)
        assert front.returncode == 130
        found = json.loads(out)
        assert found["finish_reason"] == "cancel"
        assert found["n_predict"] == len(found["tokens"]) > 0

    def test_second_ctrl_c_exits_at_once(self, command: Command) -> None:
        front = command.start(*LONG)
        first_output(front)
        engine = child_of(front.pid)
        engine.suspend()  # so that it cannot react to the first one
        front.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert front.poll() is None
        front.send_signal(signal.SIGINT)
        _, err = front.communicate(timeout=SOON)
        assert front.returncode == 130
        assert b"Traceback" not in err
        assert is_gone(engine)

    @pytest.mark.parametrize("loading", [True, False])
    def test_sigterm_ends_both_processes(self, command: Command, loading: bool) -> None:
        front = command.start(*LONG)
        engine = child_of(front.pid)
        if not loading:
            first_output(front)
        front.terminate()
        _, err = front.communicate(timeout=SOON)
        assert front.returncode == 143
        assert b"Traceback" not in err
        assert is_gone(engine)

    def test_ctrl_c_during_the_load_ends_both_processes(self, command: Command) -> None:
        front = command.start(*LONG)
        engine = child_of(front.pid)
        front.send_signal(signal.SIGINT)
        out, err = front.communicate(timeout=SOON)
        assert (front.returncode, out, err) == (130, b"", b"")
        assert is_gone(engine)

    def test_a_terminals_ctrl_c_does_not_reach_the_engine(self, command: Command) -> None:
        """A terminal signals its foreground group; the engine has another session, and ignores SIGINT."""
        front = command.start(*LONG)
        first_output(front)
        engine = child_of(front.pid)
        engine.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert engine.is_running()
        assert front.poll() is None
        front.kill()
        front.communicate(timeout=SOON)
        assert is_gone(engine)


class TestWorker:
    def start(self, **streams: object) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "specllama.worker.main"]
        return subprocess.Popen(line, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams)

    def test_it_ends_without_a_front(self) -> None:
        worker = self.start(stdin=subprocess.DEVNULL)
        out, _ = worker.communicate(timeout=SOON)
        assert worker.returncode == 0
        assert all(json.loads(line)[0] == "Heartbeat" for line in out.splitlines())

    def test_it_sends_heartbeats(self) -> None:
        worker = self.start(stdin=subprocess.PIPE)
        assert worker.stdout is not None
        message = m.decode(worker.stdout.readline())
        assert isinstance(message, Heartbeat)
        assert message.busy_for == 0
        assert message.allowed >= 30
        worker.communicate(timeout=SOON)
        assert worker.returncode == 0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    with pytest.MonkeyPatch.context() as patch:  # what earlier runs have stored would count
        patch.setenv("SPECLLAMA_CACHE", str(tmp_path_factory.mktemp("cache")))
        with EngineClient() as one:
            one.load(SETTINGS)
            yield one


def ask(client: EngineClient, n: int = 20, **more: object) -> m.Generate:
    params = {"max_tokens": n, "ignore_eos": True, "seed": 1, **more}
    return generate(client.next_id(), messages=[{"role": "user", "content": "zip"}], params=params)


def finished(client: EngineClient, request: m.Generate) -> tuple[str, list[int], m.Done]:
    """(text, ids, Done) of a request, after its end."""
    result = fold(client.generate(request))
    assert result.done is not None
    return result.text, result.ids, result.done


class TestClient:
    def test_load_describes_the_models(self) -> None:
        seen: list[tuple[str, float]] = []
        with EngineClient() as client:
            info = client.load(SETTINGS, lambda name, share: seen.append((name, share)))
            engine = psutil.Process(client.pid)
        assert info.n_ctx == 2048
        assert info.speculation == "on"
        assert {name for name, _ in seen} == {"target", "draft"}
        assert ("target", 1.0) in seen
        assert is_gone(engine)

    def test_a_repeated_request_gives_the_same_text(self, client: EngineClient) -> None:
        events = list(client.generate(ask(client)))
        assert isinstance(events[0], m.Started)
        assert events[0].params.seed == 1
        assert isinstance(events[-1], m.Done)
        text, ids, done = finished(client, ask(client))
        assert (len(ids), done.reason) == (20, "length")
        assert finished(client, ask(client))[:2] == (text, ids)
        assert finished(client, ask(client))[2].stats.n_reused > 0

    def test_closing_the_iterator_cancels(self, client: EngineClient) -> None:
        events = client.generate(ask(client, 2000))
        for event in events:
            if isinstance(event, m.Tokens):
                break
        events.close()
        started = time.monotonic()
        _, ids, done = finished(client, ask(client, 5))
        assert (len(ids), done.reason) == (5, "length")
        assert time.monotonic() - started < SOON

    def test_two_requests_take_turns(self, client: EngineClient) -> None:
        """There is one slot: the second one waits, and both give the same output as alone."""
        first, second = ask(client, 60), ask(client, 30, seed=2)
        expected = [finished(client, ask(client, 60))[1], finished(client, ask(client, 30, seed=2))[1]]
        found: dict[int, list[int]] = {}
        threads = [
            threading.Thread(target=lambda r=r: found.update({r.id: finished(client, r)[1]}))
            for r in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        assert [found[first.id], found[second.id]] == expected

    def test_a_waiting_request_can_be_cancelled(self, client: EngineClient) -> None:
        running = client.generate(ask(client, 2000))
        next(running)
        waiting = client.generate(ask(client, 5))
        next(waiting)
        waiting.close()
        running.close()
        assert finished(client, ask(client, 5))[2].reason == "length"

    def test_invalid_requests_do_not_affect_others(self, client: EngineClient) -> None:
        cases = (
            ({"nonsense": 1}, "nonsense"),
            ({"temperature": -1}, "--temp"),
            ({"stop": 5}, "--stop must be texts"),
        )
        for params, needle in cases:
            with pytest.raises(UsageError, match=needle):
                list(client.generate(generate(client.next_id(), prompt="zip", params=params)))
        for request in (generate(client.next_id(), ids=[4096]), generate(client.next_id(), ids=[])):
            with pytest.raises(UsageError):
                list(client.generate(request))
        assert finished(client, ask(client, 3))[2].reason == "length"

    def test_calibrate_measures_when_idle(self, client: EngineClient) -> None:
        finished(client, ask(client, 40))
        found = client.calibrate(0.05)
        assert found.t1 > 0
        stored = finished(client, ask(client, 5))[2].stored_t1  # plain rounds of answers have moved it
        assert stored is not None
        assert found.t1 / 10 < stored < 10 * found.t1

    def test_requests_before_a_load_and_a_second_load_are_errors(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF")
        with EngineClient() as client:
            with pytest.raises(EngineError, match="no model is loaded"):
                list(client.generate(ask(client)))
            with pytest.raises(IntegrityError):
                client.load(LoadSettings(target=ModelSettings(path=str(tmp_path / "bad.gguf"))))
            assert client.load(SETTINGS).n_ctx == 2048
            with pytest.raises(EngineError, match="already"):
                client.load(SETTINGS)
            assert finished(client, ask(client, 3))[2].reason == "length"

    def test_two_clients_are_independent(self) -> None:
        with EngineClient() as one, EngineClient() as other:
            assert one.pid != other.pid
            for client in (one, other):
                client.load(SETTINGS)
            a, b = (finished(client, ask(client)) for client in (one, other))
            assert a[:2] == b[:2]

    def test_the_end_of_the_process_reaches_all_callers(self) -> None:
        with EngineClient() as client:
            client.load(SETTINGS)
            events = client.generate(ask(client, 100_000))
            next(events)
            psutil.Process(client.pid).kill()
            with pytest.raises(EngineDiedError, match="SIGKILL"):
                list(events)
            with pytest.raises(EngineDiedError, match="SIGKILL"):
                list(client.generate(ask(client)))
            with pytest.raises(EngineDiedError, match="SIGKILL"):
                client.calibrate()

    def test_close_wakes_waiting_callers_and_ends_the_process(self) -> None:
        client = EngineClient()
        client.load(SETTINGS)
        events, errors = client.generate(ask(client, 100_000)), []
        next(events)

        def wait() -> None:
            try:
                list(events)
            except EngineDiedError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        engine = psutil.Process(client.pid)
        client.close()
        thread.join(SOON)
        assert len(errors) == 1
        assert is_gone(engine)
        client.close()

    def test_a_stopped_engine_can_be_closed(self) -> None:
        client = EngineClient()
        engine = psutil.Process(client.pid)
        engine.suspend()
        client.close()
        assert is_gone(engine)


FAKE = """#!{python}
import json, sys, time
def send(kind, **body):
    sys.stdout.write(json.dumps([kind, body]) + "\\n")
    sys.stdout.flush()
for line in sys.stdin:
    kind, body = json.loads(line)
    if kind == "Load":
        send("Ready", info={info})
    else:
        send("Started", id=body["id"], n_prompt=1, params={{}})
        {act}
"""


class TestHangs:
    """The real client with a fake engine process that misbehaves."""

    def client(self, path: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> EngineClient:
        fake = path / "worker"
        info = repr(json.loads(wire.to_json(load_info())))
        fake.write_text(FAKE.format(python=sys.executable, act=act, info=info))
        fake.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(fake))
        client = EngineClient()
        monkeypatch.undo()
        return client

    @pytest.mark.parametrize(
        ("act", "needle"),
        [
            ('send("Heartbeat", busy_for=31.5, allowed=31.0); time.sleep(60)', "hangs"),
            ('print("llama.cpp says hello", flush=True); time.sleep(60)', "invalid message"),
            ('send("Nonsense"); time.sleep(60)', "invalid message"),
            ('send("Done", wrong=1); time.sleep(60)', "invalid message"),
            (
                'sys.stderr.write("GGML_ASSERT(n > 0) failed\\\\n"); sys.exit(3)',
                "code 3\nits last line was: GGML_ASSERT",
            ),
            ("import os; os.abort()", "SIGABRT"),
        ],
    )
    def test_misbehaviour_is_reported(
        self, tmp_path: Path, act: str, needle: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self.client(tmp_path, act, monkeypatch) as client:
            client.load(SETTINGS)
            with pytest.raises(EngineDiedError, match=needle.replace("(", r"\(")):
                list(client.generate(ask(client)))
            assert not psutil.pid_exists(client.pid) or is_gone(psutil.Process(client.pid))

    def test_its_last_error_is_the_reason(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        act = 'send("Failed", error={{"kind": "EngineError", "message": "so it is"}}); sys.exit(1)'
        with self.client(tmp_path, act.replace("{{", "{").replace("}}", "}"), monkeypatch) as client:
            client.load(SETTINGS)
            with pytest.raises(EngineError, match="so it is"):
                list(client.generate(ask(client)))

    def test_a_slow_decode_is_not_a_hang(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        act = 'send("Heartbeat", busy_for=30.9, allowed=31.0); '
        act += 'send("Done", id=body["id"], text="", reason="stop", stats={})'
        with self.client(tmp_path, act, monkeypatch) as client:
            client.load(SETTINGS)
            assert isinstance(list(client.generate(ask(client)))[-1], m.Done)


def test_an_engine_that_ends_before_the_client_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the client's threads start, the end is a SpecllamaError and no thread fails."""
    start = threading.Thread.start

    def slowly(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(0.3)

    monkeypatch.setattr(threading.Thread, "start", slowly)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with EngineClient() as client, pytest.raises(EngineDiedError, match="ended with exit code 1"):
        client.calibrate()
