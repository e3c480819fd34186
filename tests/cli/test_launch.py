"""`specllama launch` with a client of the tests on PATH, which records how it was started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml  # type: ignore[import-untyped]

from specllama.cli.launch.client import NAMES, client
from specllama.data import EMBEDDED_TARGET
from tests.support.command import Command, CommandLine, assert_error
from tests.support.serving import SOON, Api, Server

KEY = "secret-of-the-tests"
FAKE = """#!{python} -IS
import json, os, signal, sys, urllib.request
base = os.environ.get("ANTHROPIC_BASE_URL")
answer = None
if base:
    body = {{"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 4, "messages": [{{"role": "user", "content": "Hi"}}]}}
    headers = {{"authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"], "content-type": "application/json"}}
    request = urllib.request.Request(base + "/v1/messages", json.dumps(body).encode(), headers)
    answer = json.load(urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(request))
with open(os.environ["HOME"] + "/" + os.path.basename(sys.argv[0]) + ".json", "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ), "answer": answer}}, file)
if "wait" in sys.argv:
    try:
        print("waiting", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(9)
sys.exit(7)
"""  # noqa: E501


class Home(Command):
    """A home with all clients on its PATH."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        programs = home / "bin"
        programs.mkdir()
        for name in NAMES:
            path = programs / client(name).program
            path.write_text(FAKE.format(python=sys.executable), "utf-8")
            path.chmod(0o755)
        for name in [n for n in self.env if n.startswith(("OPENCODE_", "LLM_"))]:
            del self.env[name]
        self.env |= {"PATH": f"{programs}:{os.environ['PATH']}", "SPECLLAMA_NO_CALIBRATE": "1"}

    def record(self, name: str) -> dict[str, Any]:
        """How the client was started."""
        path = self.home / f"{client(name).program}.json"
        parsed: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return parsed

    @property
    def was_started(self) -> bool:
        """Whether any client was."""
        return any(self.home.glob("*.json"))

    @property
    def yaml(self) -> Path:
        return self.cache / "launch" / "llm" / "extra-openai-models.yaml"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a key, and a context that is too small for an agent."""
    folder = tmp_path_factory.mktemp("running")
    with Server(folder, "-c", "1024", "--alias", "small", env={"SPECLLAMA_API_KEY": KEY}) as server:
        server.key = KEY
        yield server


def settings_of(name: str, home: Home, record: dict[str, Any]) -> tuple[str, str]:
    """The base URL and the model that the recorded client was given."""
    env, argv = record["env"], record["argv"]
    launch = home.cache / "launch"
    if name == "codex":
        values: dict[str, Any] = tomllib.loads("\n".join(b for a, b in itertools.pairwise(argv) if a == "-c"))
        return values["model_providers"]["specllama"]["base_url"], values["model"]
    if name == "claude":
        return env["ANTHROPIC_BASE_URL"] + "/v1", env["ANTHROPIC_MODEL"]
    if name == "opencode":
        config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
        provider = config["provider"]["specllama"]
        assert config["model"] == f"specllama/{next(iter(provider['models']))}"
        return provider["options"]["baseURL"], next(iter(provider["models"]))
    if name == "cline":
        assert argv[:2] == ["--data-dir", str(launch / "cline")]
        path = launch / "cline" / "settings" / "providers.json"
        settings = json.loads(path.read_text("utf-8"))["providers"]["openai-compatible"]["settings"]
        return settings["baseUrl"], settings["model"]
    if name == "continue":
        (model,) = yaml.safe_load((launch / "continue.yaml").read_text("utf-8"))["models"]
        assert argv[:2] == ["--config", str(launch / "continue.yaml")]
        return model["apiBase"], model["model"]
    if name == "llm":
        (model,) = yaml.safe_load(home.yaml.read_text("utf-8"))
        assert (env["LLM_MODEL"], env["LLM_USER_PATH"]) == (model["model_id"], str(home.yaml.parent))
        return model["api_base"], model["model_name"]
    if name == "aider":
        return env["OPENAI_API_BASE"], argv[argv.index("--model") + 1].removeprefix("openai/")
    return env["OPENAI_API_BASE_URL"], "small"  # Open WebUI asks for the list


def test_clients_get_their_settings(home: Home, running: Server) -> None:
    """The key is in no command line, and in files only that nobody else may read."""
    args = ("--url", running.url, "--force", "--", "one", "--two three")
    lines = [CommandLine(("launch", name, *args), {"SPECLLAMA_API_KEY": KEY}) for name in NAMES]
    for name, done in zip(NAMES, home.batch(*lines), strict=True):
        assert done.code == 7, done.err
        assert f"using small at {running.url}" in done.err
        record = home.record(name)
        assert settings_of(name, home, record) == (running.url + "/v1", "small")
        assert record["argv"][-2:] == ["one", "--two three"]
        assert KEY not in " ".join(record["argv"])
        assert "127.0.0.1" in record["env"]["NO_PROXY"].split(",")
        assert KEY in record["env"].values()
    assert home.record("claude")["answer"]["content"]
    for path in filter(Path.is_file, (home.cache / "launch").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KEY not in home.yaml.read_text("utf-8")


def test_what_print_shows(home: Home) -> None:
    """It does nothing: no server, no client, no file; the client need not be there."""
    env = {"PATH": os.environ["PATH"], "SPECLLAMA_PORT": "1"}
    args = ("--print", "-m", "my.gguf", "--api-key", KEY, "--", "a b")
    before = sorted(home.home.rglob("*"))
    lines = [CommandLine(("launch", name, *args), env) for name in NAMES]
    for name, done in zip(NAMES, home.batch(*lines), strict=True):
        assert done.code == 0, done.err
        words = [shlex.split(line, comments=True) for line in done.out.splitlines()]
        assert words[0][:2] == ["specllama", "serve"]
        assert words[0][words[0].index("-m") + 1] == "my.gguf"
        assert words[-1][0] == client(name).program
        assert words[-1][-1] == "a b"
        assert ("32768" in words[0]) == (client(name).n_ctx == 32768)
        assert KEY not in done.out
        assert name == "open-webui" or "my" in done.out.replace("my.gguf", "")
    assert sorted(home.home.rglob("*")) == before


def test_bad_input(home: Home, running: Server) -> None:
    url = ("--url", running.url)
    keyed = {"SPECLLAMA_API_KEY": KEY}
    none = {"PATH": "/usr/bin:/bin", **keyed}
    cases: list[tuple[tuple[str, ...], dict[str, str], int, tuple[str, ...]]] = [
        (("emacs",), {}, 2, ("'emacs'", *NAMES)),
        (("codex", "--url", "ftp://x"), {}, 2, ("--url", "http://")),
        (("codex", *url, "-c", "4096"), keyed, 2, ("-c has no meaning with --url",)),
        (("codex", *url, "-m", "other"), keyed, 3, ("'other'", "small")),
        (("codex", *url), {}, 4, ("needs a key", "SPECLLAMA_API_KEY")),
        (("codex", *url), {"SPECLLAMA_API_KEY": "wrong"}, 4, ("another than this one",)),
        (("codex", "--url", "http://127.0.0.1:1"), {}, 3, ("no specllama", "specllama serve")),
        (("codex", *url), keyed, 2, ("32768", "1024", "--force")),
        (("llm", "--port", "0", "-m", "absent.gguf"), {}, 3, ("absent.gguf",)),  # the server does not start
        (("codex", *url), none, 9, ("no codex on PATH", "npm install -g @openai/codex")),
        (("opencode", *url, "--force"), {"OPENCODE_CONFIG_CONTENT": "[", **keyed}, 2, ("is not JSON",)),
    ]
    results = home.batch(*(CommandLine(("launch", *args), env) for args, env, _, _ in cases))
    for (_, _, code, needles), result in zip(cases, results, strict=True):
        assert_error(result, code, *needles)
    assert not home.was_started


def test_a_server_is_started_and_ended(home: Home) -> None:
    """The client's exit code is kept; the key goes by the environment."""
    done = home(
        "launch", "claude", "--port", "0", "-c", "33000", "--", "hello", env={"SPECLLAMA_API_KEY": KEY}
    )
    assert done.code == 7, done.err
    record = home.record("claude")
    assert record["argv"] == ["hello"]
    assert record["answer"]["content"][0]["text"]
    assert record["env"]["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert "was trained on" in done.err  # -c was given, so that it goes on
    (log,) = (home.cache / "launch").glob("serve-*.log")
    assert str(log) in done.err
    assert "serving " in log.read_text("utf-8")
    host, _, port = record["env"]["ANTHROPIC_BASE_URL"].removeprefix("http://").partition(":")
    with pytest.raises(ConnectionError):
        Api(host, int(port)).get("/health")


def test_a_killed_launch_takes_its_server_along(home: Home) -> None:
    """Before that: -m is the file that the server has, not another one of that name, and an agent is not
    started for a model that was trained on less than it needs.
    """
    line = ("launch", "open-webui", "--port", "0", "-m", str(EMBEDDED_TARGET), "-c", "33000", "--", "wait")
    process = home.start(*line, stderr=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"waiting\n"
        started += psutil.Process(process.pid).children(recursive=True)
        url = home.record("open-webui")["env"]["OPENAI_API_BASE_URL"].removesuffix("/v1")
        copy = home.home / EMBEDDED_TARGET.name
        shutil.copy(EMBEDDED_TARGET, copy)
        link = home.home / "link.gguf"
        link.symlink_to(EMBEDDED_TARGET)
        other, same, small = home.batch(
            *(CommandLine(("launch", "llm", "--url", url, "-m", str(path))) for path in (copy, link)),
            CommandLine(("launch", "codex", "--url", url)),
        )
        assert_error(other, 3, str(copy), EMBEDDED_TARGET.stem)
        assert (same.code, f"using {EMBEDDED_TARGET.stem} at {url}" in same.err) == (7, True)
        assert_error(small, 2, "was trained on", "--force")
        process.kill()
        client_process = [p for p in started if "wait" in p.cmdline()]
        servers = [p for p in started if p not in client_process]
        assert len(client_process) == 1
        assert len(servers) == 3, "the server, its engine, and the process of its templates"
        assert not psutil.wait_procs(servers, SOON)[1]
    finally:
        home.end_started()
        process.stdout.close()
        for one in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()


def test_signals(home: Home, running: Server) -> None:
    """Ctrl-C is the client's, which ends with 9 here. The others end client and launch."""
    line = ("launch", "llm", "--url", running.url, "--", "wait")
    env = {"SPECLLAMA_API_KEY": KEY}
    codes = {signal.SIGINT: 9, signal.SIGTERM: 143, signal.SIGHUP: 129}
    processes = {
        number: home.start(*line, env=env, fork=True, start_new_session=True, stderr=subprocess.DEVNULL)
        for number in codes
    }
    try:
        for number, process in processes.items():
            assert process.stdout is not None
            assert process.stdout.readline() == b"waiting\n"
            if number == signal.SIGINT:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            assert process.stdout.read() == b"", "the client holds it open while it runs"
            process.stdout.close()
            assert process.wait(SOON) == codes[number]
    finally:
        home.end_started()


def test_settings_of_the_user_are_kept(home: Home, running: Server) -> None:
    mine = home.home / "config" / "io.datasette.llm" / "extra-openai-models.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("- [", "utf-8")
    before = {"theme": "mine", "provider": {"other": {"name": "o"}}}
    args, env = ("--url", running.url, "--force"), {"SPECLLAMA_API_KEY": KEY}
    llm, code = home.batch(
        CommandLine(("launch", "llm", *args), {**env, "LLM_USER_PATH": str(mine.parent)}),
        CommandLine(("launch", "opencode", *args), {**env, "OPENCODE_CONFIG_CONTENT": json.dumps(before)}),
    )
    assert (llm.code, code.code) == (7, 7)
    assert [(p.name, p.read_text("utf-8")) for p in mine.parent.iterdir()] == [(mine.name, "- [")]
    assert home.record("llm")["argv"] == ["chat"]
    assert home.record("llm")["env"]["OPENAI_API_KEY"] == KEY
    config = json.loads(home.record("opencode")["env"]["OPENCODE_CONFIG_CONTENT"])
    assert config["theme"] == "mine"
    assert set(config["provider"]) == {"other", "specllama"}
