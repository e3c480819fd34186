"""Surroundings that lack what is usually there: a home, a working directory, room to lock memory, a whole
file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specllama.data import EMBEDDED_TARGET
from tests.support import ggufbytes as g
from tests.support.command import MAIN, Command, Result, assert_error
from tests.support.hub import LocalHub, Repo
from tests.support.paths import ROOT

ASK = ("run", "-p", "zip", "-n", "3", "--temp", "0")
NO_HOME = "note: there is no home directory (HOME is not set, and the user has no entry)"
# In all Python processes: the user has no entry.
NO_ENTRY = "import pwd\ndef absent(uid): raise KeyError(uid)\npwd.getpwuid = absent\n"


@pytest.fixture(scope="module")
def answer(shared: Command) -> str:
    return shared.generate("-p", "zip", "-n", "3", "--temp", "0").out


def run(command: Command, *args: str, cwd: Path, **env: str | None) -> Result:
    """The command with little in its environment."""
    bare = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "SPECLLAMA_CACHE", "SPECLLAMA_DATA"))
    done = subprocess.run(
        [*MAIN, *args],
        input=b"",
        capture_output=True,
        env=command.environment({**bare, **env}),
        cwd=cwd,
        timeout=60,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))


@pytest.fixture
def homeless(command: Command) -> str:
    """The PYTHONPATH of a process whose user has no entry."""
    (command.home / "site").mkdir()
    (command.home / "site" / "sitecustomize.py").write_text(NO_ENTRY)
    return f"{command.home / 'site'}{os.pathsep}{ROOT}"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (ASK, 0),
        (("list",), 0),
        (("pair-check", "pydoc", "pydoc"), 0),
        (("launch", "llm", "--print"), 0),
        (("run", "-p", "zip", "-m", "8B"), 5),
    ],
)
def test_no_home_and_no_entry(command: Command, homeless: str, args: tuple[str, ...], code: int) -> None:
    result = run(command, *args, cwd=command.home, PYTHONPATH=homeless, HF_HUB_OFFLINE="1")
    assert result.code == code, result.err
    assert [line for line in result.lines if line.startswith(NO_HOME)] == [result.lines[0]]
    assert "unexpected" not in result.err
    assert not (command.home / "~").exists()


def test_a_pull_without_a_home_names_the_variable(command: Command, homeless: str, hub: LocalHub) -> None:
    hub.repos["user/model-GGUF"] = Repo({"model-Q4_0.gguf": g.llama().build()})
    result = run(command, "pull", "user/model-GGUF", cwd=command.home, PYTHONPATH=homeless, **hub.environ())
    assert_error(result, 8, "there is no home directory to keep models in", "HF_HUB_CACHE")
    kept = {**hub.environ(), "PYTHONPATH": homeless, "HF_HUB_CACHE": str(command.home / "hub")}
    assert run(command, "pull", "user/model-GGUF", cwd=command.home, **kept).code == 0


def test_directories_that_are_named_need_no_home(command: Command, homeless: str) -> None:
    named = {f"SPECLLAMA_{name}": str(command.home / name) for name in ("CACHE", "DATA")}
    config = command.home / "config.toml"
    config.write_text("max_tokens = 2\n")
    env = {**named, "SPECLLAMA_CONFIG": str(config), "PYTHONPATH": homeless}
    result = run(command, "run", "-p", "zip", "--json", cwd=command.home, **env)
    assert result.json["n_predict"] <= 2
    assert NO_HOME not in result.err
    assert (command.home / "CACHE" / "calibration").exists()


@pytest.mark.parametrize(
    "args", [ASK, ("list",), ("doctor",), ("run", "-f", "x.txt"), ("run", "-p", "x", "-m", "y.gguf")]
)
def test_a_deleted_working_directory(command: Command, args: tuple[str, ...]) -> None:
    (command.home / "gone").mkdir()
    line = 'cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", line, "bash", *MAIN, *args],
        input=b"", capture_output=True, env=command.env, cwd=command.home, timeout=60, check=False,
    )  # fmt: skip
    result = Result(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))
    if args[-1] in ("x.txt", "y.gguf"):
        assert_error(result, 3, "the working directory is gone", f"there is no file {args[-1]}")
    else:
        assert result.code == 0, result.err
        assert "the working directory is gone" in (result.out if args == ("doctor",) else result.err)


def test_the_home_directory_in_paths(command: Command) -> None:
    shutil.copy(EMBEDDED_TARGET, command.home / "mine.gguf")
    (command.home / "config.toml").write_text('model = "~/mine.gguf"\nchat_template_file = "~/t.jinja"\n')
    (command.home / "t.jinja").write_text("{{ messages[0].content }}")
    (command.home / "prompt.txt").write_text("zip\n")
    env = {"SPECLLAMA_CONFIG": "~/config.toml", "SPECLLAMA_CACHE": "~/kept", "SPECLLAMA_MODEL": None}
    result = command("run", "-f", "~/prompt.txt", "-n", "3", "--json", "--log-file", "~/log", env=env)
    assert result.code == 0, result.err
    assert result.json["target"]["path"] == str(command.home / "mine.gguf")
    assert result.json["n_prompt"] == 2
    assert (command.home / "kept" / "calibration").exists()
    assert (command.home / "log").exists()
    assert not (command.home / "~").exists()


def test_variables_of_a_service_of_that_name(shared: Command, answer: str) -> None:
    """Kubernetes sets them in every container of a namespace with such a service."""
    service = {
        "SPECLLAMA_SERVICE_HOST": "10.96.0.1", "SPECLLAMA_SERVICE_PORT": "8080",
        "SPECLLAMA_SERVICE_PORT_HTTP": "8080", "SPECLLAMA_PORT": "tcp://10.96.0.1:8080",
        "SPECLLAMA_PORT_8080_TCP": "tcp://10.96.0.1:8080", "SPECLLAMA_PORT_8080_TCP_PROTO": "tcp",
        "SPECLLAMA_PORT_8080_TCP_PORT": "8080", "SPECLLAMA_PORT_8080_TCP_ADDR": "10.96.0.1",
        "SPECLLAMA_MODEL_SERVICE_HOST": "10.96.0.2", "SPECLLAMA_MODEL_PORT": "tcp://10.96.0.2:80",
    }  # fmt: skip
    result = shared(*ASK, "--no-calibrate", env=service)
    assert (result.code, result.out) == (0, answer)
    assert len([line for line in result.lines if "of a service of that name" in line]) == 1
    assert "and 9 more" in result.err
    assert_error(shared(*ASK, env={"SPECLLAMA_PORT": "http"}), 2, "SPECLLAMA_PORT must be a whole number")


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv to limit locked memory")
def test_memory_that_cannot_be_locked_is_said(shared: Command, answer: str) -> None:
    limited = 'ulimit -l 64; exec setpriv --bounding-set=-ipc_lock "$@"'
    line = ["bash", "-c", limited, "bash", *MAIN, *ASK, "--no-calibrate", "--mlock"]
    done = subprocess.run(
        line, input=b"", capture_output=True, env=shared.env, cwd=shared.home, timeout=60, check=False
    )
    if b"Operation not permitted" in done.stderr:
        pytest.skip("capabilities cannot be dropped here")
    assert (done.returncode, done.stdout.decode()) == (0, answer)
    notes = re.findall(
        r"note: --mlock cannot keep the whole model in memory: .*Cannot allocate", done.stderr.decode()
    )
    assert len(notes) == 1
    assert "--mlock" not in shared.generate("-p", "zip", "-n", "3").err


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="what is mapped of a cut file is lost on Linux"
)
def test_a_model_that_is_cut_while_it_runs(command: Command) -> None:
    path = command.home / "mine.gguf"
    shutil.copy(EMBEDDED_TARGET, path)
    process = command.start("run", "-m", "mine.gguf", "-md", "none", "-p", "zip", "-n", "-2", "-c", "2048")
    assert process.stdout is not None
    process.stdout.read(1)
    os.truncate(path, 1000)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 9
    assert b"was ended by SIGBUS" in err
    assert b"the model was overwritten or cut while it ran" in err


def test_a_draft_context_that_is_too_small_is_the_reason(shared: Command) -> None:
    few = (
        "-n",
        "80",
        "--ignore-eos",
        "--no-calibrate",
        "--temp",
        "0",
        "--drafters",
        "model",
        "--draft-max",
        "4",
    )
    (shared.home / "long.txt").write_text("word " * 270)
    result = shared.generate("-md", "pydoc", "-cd", "64", "-f", "long.txt", *few)
    assert "note: -cd 256: the draft model proposes little or nothing in longer texts" in result.err
    assert re.search(
        r"nothing was drafted: the context of the draft model, 256 tokens, is smaller", result.err
    )


def test_a_template_whose_end_is_no_token_of_the_model_is_said(shared: Command) -> None:
    template = "{% for m in messages %}<|a|>{{ m.role }}\n{{ m.content }}<|b|>\n{% endfor %}"
    result = shared.generate("-p", "zip", "-n", "3", "--chat-template", template)
    assert "note: the chat template ends answers with <|b|>, no token of this model" in result.err
    assert "--stop '<|b|>'" in result.err
    assert "ends answers" not in shared.generate("-p", "zip", "-n", "3", "--chat-template", "chatml").err


def test_time_for_slow_input_is_not_silent(shared: Command) -> None:
    """A pipe that nobody closes: what is waited for is said."""
    reading, writing = os.pipe()
    process = shared.start("run", "-p", "zip", "-n", "3", "--no-calibrate", stdin=reading)
    os.close(reading)
    assert process.stderr is not None
    assert process.stderr.readline() == b"waiting for the end of standard input (< /dev/null: none)\n"
    time.sleep(0.1)
    os.close(writing)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, bool(out)) == (0, True)
