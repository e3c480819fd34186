"""Invalid files, templates, settings and environments with `serve`."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tinygguf
from tests.support.command import MAIN, Command
from tests.support.serving import QUESTION, SOON, Api, Server, first_event, rest

pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="signals and a shell's redirections"),
]
TEMPLATE = (
    "{% set wanted = messages[-1].content %}"
    "{% if wanted == 'print' %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}"
    "{% elif wanted == 'escape' %}{{ ''.__class__.__mro__[1].__subclasses__() }}"
    "{% elif wanted == 'raise' %}{{ raise_exception('only one') }}"
    "{% elif wanted == 'loop' %}"
    "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    "{% else %}{{ wanted }}{% endif %}"
)


@pytest.fixture(scope="module")
def obedient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose chat template does what the last message says."""
    with Server(tmp_path_factory.mktemp("obedient"), "--chat-template", TEMPLATE, "-np", "1") as one:
        yield one


class TestTemplates:
    """Chat templates that fail."""

    @pytest.mark.parametrize(
        ("word", "needle"),
        [("print", "4 MB"), ("escape", "unsafe"), ("raise", "only one"), ("loop", "ran for more than")],
    )
    def test_a_failing_template_is_an_error_of_the_request(
        self, obedient: Server, word: str, needle: str
    ) -> None:
        """It prints endlessly, breaks out of the sandbox, refuses the messages, or never ends."""
        messages, began = [{"role": "user", "content": word}], time.monotonic()
        for stream in (False, True):
            reply = obedient.chat(messages, stream=stream)
            assert (reply.status, needle in reply.error["message"]) == (400, True), reply.error
        assert obedient.post("/apply-template", {"messages": messages}).status == 400
        assert time.monotonic() - began < 3 * 20
        assert obedient.complete("x", max_tokens=1).status == 200
        assert obedient.chat(QUESTION, max_tokens=1).status == 200

    def test_a_chat_with_a_model_without_template_is_an_error(self, tmp_path) -> None:
        tinygguf.llama(tmp_path / "model.gguf")
        content = (tmp_path / "model.gguf").read_bytes()
        key = b"tokenizer.chat_template"
        assert content.count(key) == 1
        (tmp_path / "plain.gguf").write_bytes(content.replace(key, b"tokenizer.chat_tamplete"))
        with Server(tmp_path, "-m", "plain.gguf", "-np", "1") as one:
            reply = one.chat(QUESTION)
            assert (reply.status, "no chat template" in reply.error["message"]) == (400, True)
            assert one.complete("zip", max_tokens=2).status == 200


class TestMemory:
    """Contexts that are too large."""

    def test_a_context_that_does_not_fit_is_an_error(self, tmp_path) -> None:
        done = Command(tmp_path)("serve", "--port", "0", "-c", "2000000000")
        assert (done.code, "not enough memory" in done.err) == (8, True), done.err
        assert "It would fit with -c " in done.err
        assert "Traceback" not in done.err

    def test_a_context_beyond_training_is_a_warning(self, small: Server) -> None:
        assert any("was trained on 2048 tokens, n_ctx is 65536" in line for line in small.lines)
        assert small.complete(max_tokens=1).status == 200


def test_control_tokens_in_a_message_stay_text(small: Server) -> None:
    counts = []
    for text in ("", "<|im_end|>", "<|im_end|>" * 3):
        reply = small.chat([{"role": "user", "content": f"zip {text}"}], max_tokens=1)
        counts.append(reply.json["usage"]["prompt_tokens"])
    assert counts[1] - counts[0] > 3
    assert counts[2] - counts[0] > 9


def test_a_crashed_engine_is_restarted(small: Server) -> None:
    """As after a fault in llama.cpp; no core file is left."""
    streaming = first_event(small.begin(prompt="def ", ignore_eos=True, max_tokens=15_000, stream=True))
    small.engine().send_signal(signal.SIGSEGV)
    last = rest(streaming)[-1]["error"]
    assert (last["type"], "SIGSEGV" in last["message"]) == ("unavailable_error", True), last
    small.until(lambda: small.get("/health").status == 200, 60)
    assert small.complete(max_tokens=2).status == 200
    assert not list(small.home.glob("core*"))


class TestStreams:
    """Closed streams and terminals with few abilities."""

    def test_it_runs_on_when_the_reader_of_its_log_leaves(self, tmp_path) -> None:
        """As with `specllama serve 2>&1 | head`."""
        process = Command(tmp_path).start("serve", "--port", "0", "-np", "1", "--no-calibrate")
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith(b"serving "))
            process.stderr.close()
            port = int(line.split(b"/v1")[0].rpartition(b":")[2])
            self.check(port)
            process.terminate()
            assert process.wait(SOON) == 143
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2> /dev/full"])
    def test_it_runs_with_closed_streams(self, tmp_path, closed: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = Command(tmp_path)
        line = f"exec {shlex.join(MAIN)} serve --port {port} -np 1 --no-calibrate {closed}"
        process = subprocess.Popen(["bash", "-c", line], env=command.env, cwd=command.home)
        try:
            self.check(port)
            process.terminate()
            assert process.wait(SOON) == 143
        finally:
            process.kill()
            process.wait()

    def check(self, port: int) -> None:
        one = Api("127.0.0.1", port)
        one.until(one.answers, 60)
        for _ in range(3):
            assert one.chat(QUESTION, max_tokens=2).status == 200
        assert one.get("/nothing").status == 404

    def test_it_runs_in_a_narrow_terminal_without_unicode(self, tmp_path) -> None:
        env = {"LC_ALL": "C", "PYTHONUTF8": "0", "COLUMNS": "20", "TERM": "dumb"}
        with Server(tmp_path, "-np", "1", "--log-prompts", "--alias", "*", env=env) as one:
            reply = one.chat([{"role": "user", "content": "😀 é"}], model="modèle-😀", max_tokens=2)
            assert (reply.status, reply.json["model"]) == (200, "modèle-😀")
            one.wait_for("/v1/chat/completions 200")
            assert not any("Traceback" in line or "unexpected" in line for line in one.lines)


class TestSettings:
    """Invalid settings in a file or in the environment."""

    @pytest.mark.parametrize(
        ("text", "needles"),
        [
            ("queue = 3\n\nno_such = 3\n", ("line 3", "no_such")),
            ("port = 'many'\n", ("line 1", "port", "a whole number")),
            ("queue = = 1\n", ("line 1", "TOML")),
            ("client_timeout = 0\n", ("line 1: client_timeout must be seconds above 0",)),
        ],
    )
    def test_errors_in_a_file_name_the_line(
        self, tmp_path: Path, text: str, needles: tuple[str, ...]
    ) -> None:
        user = tmp_path / "config" / "specllama" / "config.toml"
        user.parent.mkdir(parents=True)
        user.write_text(text)
        done = Command(tmp_path)("serve")
        assert (done.code, done.raw, "Traceback" in done.err) == (2, b"", False), done.err
        assert all(needle in done.err for needle in needles), done.err

    @pytest.mark.parametrize(
        ("variable", "value", "needle"),
        [
            ("SPECLLAMA_QUEUE", "many", "SPECLLAMA_QUEUE must be a whole number"),
            ("SPECLLAMA_CLIENT_TIMEOUT", "x", "SPECLLAMA_CLIENT_TIMEOUT must be a number"),
            ("SPECLLAMA_QEUE", "1", "did you mean SPECLLAMA_QUEUE"),
        ],
    )
    def test_errors_in_the_environment_name_the_variable(
        self, tmp_path: Path, variable: str, value: str, needle: str
    ) -> None:
        done = Command(tmp_path)("serve", env={variable: value})
        assert (done.code, needle in done.err, "Traceback" in done.err) == (2, True, False), done.err


class TestSockets:
    """A path instead of a port, and a socket that systemd has opened."""

    def test_a_unix_socket(self, tmp_path) -> None:
        """It needs no key, answers under any name, and says on stdout when it is ready."""
        process = Command(tmp_path).start(
            "serve", "--host", "unix:s", "-np", "1", "--no-calibrate", "--root-path", "/llm"
        )
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready unix:{tmp_path}/s\n".encode()
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(tmp_path / "s"))
            link.sendall(b"GET /llm/health/ready HTTP/1.0\r\nHost: llm.example.org\r\n\r\n")
            assert link.makefile("rb").read().endswith(b'\r\n\r\n{"status":"ok"}')
        second = Command(tmp_path)("serve", "--host", f"unix:{tmp_path}/s")
        assert (second.code, "it is in use" in second.err) == (8, True), second.err
        listed = Command(tmp_path)("stop", f"{tmp_path}/s")
        assert (listed.code, listed.out) == (0, f"stopped unix:{tmp_path}/s\n"), listed.err
        assert process.wait(SOON) == 143
        assert not (tmp_path / "s").exists()
        process.communicate()

    def test_a_socket_and_messages_of_systemd(self, tmp_path) -> None:
        command = Command(tmp_path)
        with (
            socket.create_server(("127.0.0.1", 0)) as passed,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        ):
            manager.bind(str(tmp_path / "notify"))
            manager.settimeout(60)
            port, n = passed.getsockname()[1], passed.fileno()
            line = f"exec 3<&{n} {n}<&-; LISTEN_PID=$$ LISTEN_FDS=1 exec {shlex.join(MAIN)} serve -np 1"
            process = subprocess.Popen(
                ["bash", "-c", f"{line} --no-calibrate"],
                env=command.env | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
                cwd=tmp_path,
                pass_fds=[n],
                stderr=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
            )
            try:
                passed.close()
                assert manager.recv(200) == b"READY=1\nSTATUS=serving pydoc-target"
                assert Api("127.0.0.1", port).complete(max_tokens=2).status == 200
                process.terminate()
                assert manager.recv(200) == b"STOPPING=1"
                out, _ = process.communicate(timeout=SOON)
                assert (out, process.returncode) == (f"ready http://127.0.0.1:{port}\n".encode(), 143)
            finally:
                process.kill()
                process.wait()

    def test_a_unix_socket_is_for_no_browser_and_no_client(self, tmp_path) -> None:
        for line in (("serve", "--open"), ("launch", "llm", "--print")):
            done = Command(tmp_path)(*line, "--host", "unix:s")
            assert (done.code, "unix socket" in done.err) == (2, True), done.err

    @pytest.mark.parametrize(
        ("path", "code", "needle"),
        [("unix:missing/s", 3, "not exist"), ("unix:file", 8, "something else"), ("unix:", 2, "unix:PATH")],
    )
    def test_wrong_paths(self, tmp_path, path: str, code: int, needle: str) -> None:
        (tmp_path / "file").touch()
        done = Command(tmp_path)("serve", "--host", path)
        assert (done.code, needle in done.err, "Traceback" in done.err) == (code, True, False), done.err
