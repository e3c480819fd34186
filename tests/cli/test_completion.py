"""Shell completion as shells ask for it: the script that specllama prints, run by real bash, zsh and fish."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from specllama.cli.completion import completer, model_names
from specllama.config.load import LoadSettings, ModelSettings
from specllama.config.options import CHAT, RUN
from specllama.models import manifest
from specllama.option import GGUF, LIST
from tests.support.command import Command
from tests.support.forks import fork_server

SCRIPTS = Path(sys.executable).parent  # where the installed command is
COMMANDS = ["chat", "doctor", "models", "pair-check", "pull", "run"]
KNOWN = set(manifest.load({}, Path("/")).names())
WORDS = {  # what is offered behind a flag
    "-md": ["auto", "none"],
    "--flash-attn": ["on", "off", "auto"],
    "-ctk": ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"],
    "--cache-type-v-draft": ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"],
    "--split-mode": ["none", "layer", "row", "tensor"],
    "--rope-scaling": ["none", "linear", "yarn"],
    "--reasoning": ["on", "off", "auto"],
    "--drafters": ["model", "copy", "grammar", "none"],
    "-ngl": ["auto", "all"],
    "--draft-max": ["auto"],
    "-dev": ["none"],
}
FILES = ["main.gguf", "main-2.GGUF", "notes.txt", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]
FILES += ["models/sub/only.gguf", "more/a.gguf", "more/b.gguf", "my models/x y.gguf", ".hidden/h.gguf"]
HERE = ["big-00001-of-00002.gguf", "main-2.GGUF", "main.gguf", "models/", "more/", "my models/"]


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not shutil.which(shell), reason=f"{shell} is not installed")


class Shells:
    """A home with files, and what each shell offers there."""

    def __init__(self, home: Path) -> None:
        self.command, self.home, self.here = Command(home), home, home / "here"
        for name in FILES:
            (self.here / name).parent.mkdir(parents=True, exist_ok=True)
            (self.here / name).write_bytes(b"GGUF")
        self.installed = os.pathsep.join([str(SCRIPTS), os.environ.get("PATH", "")])
        path = self.installed
        if (forks := fork_server(self.command.environment())) is not None:
            (home / "bin").mkdir()
            forks.write_command(home / "bin" / "specllama")
            path = os.pathsep.join([str(home / "bin"), path])
        self.env = self.command.environment({"PATH": path, "HF_HOME": None, "HF_HUB_CACHE": None})

    def say(self, *command: str, **env: str) -> str:
        """What a command prints; nothing goes to stderr. PATH=self.installed: no forks."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=self.env | env,
            cwd=self.here,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout

    def script(self, shell: str) -> Path:
        file = self.home / f"complete.{shell}"
        if not file.exists():
            test_mode = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
            test_mode["PATH"] = self.installed
            file.write_text(self.say("specllama", "--show-completion", shell, **test_mode))
        return file

    def bash(self, words: Sequence[str], **env: str) -> list[str]:
        """COMPREPLY for words as they were typed, the last one unfinished."""
        line = (
            f"source {shlex.quote(str(self.script('bash')))}\n"
            f"COMP_WORDS=({' '.join(map(shlex.quote, words))}); COMP_CWORD={len(words) - 1}\n"
            f"_specllama_completion {shlex.quote(words[0])} {shlex.quote(words[-1])}\n"
            '[ ${#COMPREPLY[@]} = 0 ] || printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return self.say("bash", "--norc", "-c", line, **env).splitlines()

    def zsh(self, words: Sequence[str]) -> list[str]:
        """What the function hands to _arguments, or FILES where it leaves the word to zsh."""
        line = (
            'compdef() { : }; _files() { print FILES }; _arguments() { print -r -- "$@" }\n'
            f"source {shlex.quote(str(self.script('zsh')))}\n"
            f"words=({' '.join(map(shlex.quote, words))}); CURRENT={len(words)}\n"
            "_specllama_completion"
        )
        output = self.say("zsh", "-fc", line).strip()
        if output == "FILES":
            return []
        offered = shlex.split(output.removeprefix("*: :((").removesuffix("))"))
        return [word.partition(":")[0] for word in offered]

    def fish(self, words: Sequence[str]) -> list[str]:
        """What fish itself would show; its own files too where the word is left to it."""
        line = f"source {shlex.quote(str(self.script('fish')))}; complete -C {shlex.quote(' '.join(words))}"
        return [offered.partition("\t")[0] for offered in self.say("fish", "-c", line).splitlines()]


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Shells:
    if not (SCRIPTS / "specllama").exists():
        pytest.skip("the command is not installed")
    return Shells(tmp_path_factory.mktemp("home"))


every_shell = pytest.mark.parametrize(
    "shell", [pytest.param(name, marks=needs(name)) for name in ("bash", "zsh", "fish")]
)


def offered(shells: Shells, shell: str, *words: str) -> list[str]:
    words_offered: list[str] = getattr(shells, shell)(["specllama", *words])
    return words_offered


@every_shell
def test_commands_are_completed(shells: Shells, shell: str) -> None:
    assert set(COMMANDS) <= set(offered(shells, shell, ""))
    assert offered(shells, shell, "pair-") == ["pair-check"]


@every_shell
def test_flags_are_completed_in_both_spellings(shells: Shells, shell: str) -> None:
    assert offered(shells, shell, "run", "-ng") == ["-ngl", "-ngld"]
    assert offered(shells, shell, "run", "--draft-m") == ["--draft-max", "--draft-min"]
    assert offered(shells, shell, "run", "-p", "x", "-ctk", "f16", "-ctv") == ["-ctv", "-ctvd"]
    every = offered(shells, shell, "run", "-")
    assert {flag for option in RUN for flag in option.flags} <= set(every)
    assert "--show-draft" in offered(shells, shell, "chat", "--s")


@every_shell
@pytest.mark.parametrize("flag", ["-md", "--flash-attn", "--drafters", "-ctk"])
def test_values_of_flags_are_completed(shells: Shells, shell: str, flag: str) -> None:
    unknown = [w for w in offered(shells, shell, "run", flag, "") if w not in KNOWN]
    assert sorted(w for w in unknown if "." not in w and "/" not in w) == sorted(WORDS[flag])


@every_shell
def test_names_of_models_are_completed(shells: Shells, shell: str) -> None:
    assert offered(shells, shell, "run", "-m", "8") == ["8B"]
    assert offered(shells, shell, "pull", "8B", "llama-3.2") == ["llama-3.2-1b"]
    assert {"qwen3-8b", "qwen3-14b"} <= set(offered(shells, shell, "pair-check", "qwen3"))
    assert offered(shells, shell, "models", "verify", "8") == []  # nothing was downloaded


@every_shell
def test_paths_of_model_files_are_completed(shells: Shells, shell: str) -> None:
    assert sorted(offered(shells, shell, "run", "-m", "ma")) == ["main-2.GGUF", "main.gguf"]
    assert sorted(offered(shells, shell, "run", "-m", "more/")) == ["more/a.gguf", "more/b.gguf"]
    assert offered(shells, shell, "pair-check", "big") == ["big-00001-of-00002.gguf"]
    assert offered(shells, shell, "pair-check", "main.gguf", "more/b") == ["more/b.gguf"]
    # A directory alone would be followed by a blank: what is in it comes instead.
    assert offered(shells, shell, "run", "--model", "mod") == ["models/sub/only.gguf"]


@every_shell
def test_other_files_are_left_to_the_shell(shells: Shells, shell: str) -> None:
    for flag in ("-f", "--grammar-file", "-jf", "--chat-template-file", "--log-file"):
        assert offered(shells, shell, "run", flag, "no") == (["notes.txt"] if shell == "fish" else [])


@needs("zsh")
def test_in_zsh_tildes_and_quotes_are_left_to_the_shell(shells: Shells, tmp_path: Path) -> None:
    assert shells.zsh(["specllama", "run", "-m", "~/he"]) == []
    (tmp_path / "it's.gguf").touch()
    assert shells.zsh(["specllama", "run", "-m", f"{tmp_path}/it"]) == []


@needs("bash")
class TestBash:
    def test_every_flag_is_completed(self, shells: Shells) -> None:
        for flag, words in WORDS.items():
            completed = shells.bash(["specllama", "run", flag, ""])
            completed = [w for w in completed if w not in KNOWN]
            assert [w for w in completed if "." not in w and "/" not in w] == words, flag
            assert words[-1] in shells.bash(["specllama", "run", flag, words[-1][:-1]])

    def test_names_with_special_characters_are_quoted(self, shells: Shells, tmp_path: Path) -> None:
        for name in ("a[1]$b.gguf", "it's.gguf", "new\nline.gguf", "c*.gguf"):
            (tmp_path / name).touch()
        completed = shells.bash(["specllama", "run", "-m", f"{tmp_path}/"])
        output = shells.say("bash", "-c", f"printf '%s\\n' {' '.join(completed)}").splitlines()
        assert output == [f"{tmp_path}/{name}" for name in ("a[1]$b.gguf", "c*.gguf", "it's.gguf")]

    def test_a_list_is_completed_after_its_comma(self, shells: Shells) -> None:
        assert shells.bash(["specllama", "run", "--drafters", "copy,"]) == ["copy,model", "copy,grammar"]
        assert shells.bash(["specllama", "run", "--drafters", "model,copy,g"]) == ["model,copy,grammar"]
        assert shells.bash(["specllama", "run", "--drafters", "x,y,"])[0] == "x,y,model"

    def test_an_empty_word_completes_to_all_models_here(self, shells: Shells) -> None:
        completed = shells.bash(["specllama", "run", "-m", ""])
        assert completed[: len(HERE)] == [name.replace(" ", "\\ ") for name in HERE]
        assert set(completed[len(HERE) :]) == KNOWN
        assert shells.bash(["specllama", "run", "-md", ""])[:2] == ["auto", "none"]
        assert shells.bash(["specllama", "run", "-m", ".h"]) == [".hidden/h.gguf"]

    def test_names_with_spaces_are_completed(self, shells: Shells) -> None:
        assert shells.bash(["specllama", "run", "-m", "my"]) == ["my\\ models/x\\ y.gguf"]
        assert shells.bash(["specllama", "run", "-m", "my\\ models/x"]) == ["my\\ models/x\\ y.gguf"]
        assert shells.bash(["specllama", "run", "-m", '"my models/x']) == ["my models/x y.gguf"]

    def test_a_tilde_is_completed(self, shells: Shells) -> None:
        assert shells.bash(["specllama", "run", "-m", "~/here/more/b"]) == ["~/here/more/b.gguf"]
        assert shells.bash(["specllama", "run", "-m", f"{shells.here}/ma"]) == [
            f"{shells.here}/main-2.GGUF",
            f"{shells.here}/main.gguf",
        ]

    def test_models_of_the_hub_cache_are_completed(self, shells: Shells) -> None:
        snapshot = shells.home / "hf" / "hub" / "models--user--repo" / "snapshots" / "abc"
        blobs = snapshot.parents[1] / "blobs"
        snapshot.mkdir(parents=True)
        blobs.mkdir()
        (blobs / "0123.gguf").write_bytes(b"GGUF")
        (snapshot / "q4.gguf").symlink_to(blobs / "0123.gguf")
        (snapshot / "README.md").write_text("")
        env = {"HF_HOME": str(shells.home / "hf")}
        completed = shells.bash(["specllama", "run", "-m", ""], **env)
        assert str(snapshot / "q4.gguf") in completed
        assert not [word for word in completed if "0123" in word or "README" in word]
        typed = str(snapshot.parents[2]) + "/mo"
        assert str(snapshot / "q4.gguf") in shells.bash(["specllama", "run", "-m", typed], **env)
        shutil.rmtree(shells.home / "hf")

    def test_odd_command_lines_complete_to_nothing(self, shells: Shells) -> None:
        """Nothing is offered, nothing is printed and nothing is run."""
        for words in (
            ["run", "-m", "nowhere/"],
            ["run", "-m", "main.gguf/"],
            ["run", "-m", "~nobody/x"],
            ["run", "-m", "x" * 5000],
            ["run", "-pps", "x", "--draft-max", "zz"],
            ["run", "'unclosed", "-fa", "zz"],
            ["nosuch", "-m", "zz"],
            ["run", "--", "zz"],
        ):
            assert shells.bash(["specllama", *words]) == [], words

    def test_it_is_quick_and_loads_no_llama_cpp(self, shells: Shells) -> None:
        for name in ("llama_cpp", "numpy", "jinja2"):
            (shells.home / "shims" / name).mkdir(parents=True, exist_ok=True)
            (shells.home / "shims" / name / "__init__.py").write_text("raise SystemExit('loaded')\n")
        env = {"PYTHONPATH": os.pathsep.join([shells.env["PYTHONPATH"], str(shells.home / "shims")])}
        env["PATH"] = shells.installed
        seconds = []
        for _ in range(5):
            begin = os.times()
            assert "main.gguf" in shells.bash(["specllama", "run", "-m", "ma"], **env)
            end = os.times()
            seconds.append(sum(end[2:4]) - sum(begin[2:4]))
        assert min(seconds) < 0.6  # of processor time; 0.15 s on a machine that has nothing else to do

    @pytest.mark.parametrize(
        "variables", [{}, {"COMP_WORDS": "specllama"}, {"COMP_WORDS": "", "COMP_CWORD": "x"}]
    )
    def test_variables_that_no_shell_sets(self, shells: Shells, variables: dict[str, str]) -> None:
        done = subprocess.run(
            ["specllama"], capture_output=True, text=True, timeout=60, check=False,
            env=shells.env
            | {"PATH": shells.installed, "_SPECLLAMA_COMPLETE": "complete_bash"}
            | variables,
        )  # fmt: skip
        assert done.stdout == ""
        assert "Traceback" not in done.stderr


@needs("bash")
def test_the_completion_is_installed(shells: Shells, tmp_path: Path) -> None:
    """As a user does it, in a shell that it finds out about by itself."""
    path = {"PATH": shells.installed}
    install = "specllama --install-completion; true"
    output = shells.say("bash", "--norc", "-c", install, HOME=str(tmp_path), **path)
    assert "bash completion installed in" in output
    assert "specllama" in (tmp_path / ".bashrc").read_text()
    shown = shells.say("bash", "--norc", "-c", "specllama --show-completion; true", **path)
    (installed,) = (tmp_path / ".bash_completions").iterdir()
    assert installed.read_text() == shown.strip()
    line = f". {shlex.quote(str(tmp_path / '.bashrc'))}; complete -p specllama"
    assert "_specllama_completion" in shells.say("bash", "--norc", "-c", line)


def test_a_directory_with_many_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "deep" / "down").mkdir(parents=True)
    (tmp_path / "deep" / "down" / "again").symlink_to(tmp_path / "deep")
    begin = time.thread_time()
    assert model_names(f"{tmp_path}/")[0].endswith("/")  # a ring of directories has no end
    assert time.thread_time() - begin < 1
    for i in range(3000):
        (tmp_path / f"{i}.txt").touch()
    assert len(model_names(f"{tmp_path}/")) == 1


def test_offered_values_are_accepted() -> None:
    """Each word that stands in the table of options."""
    for option in [*RUN, *CHAT]:
        words = [w for w in option.completes if w not in (GGUF, LIST)]
        assert completer(option.completes)("zz") == []
        if option.name in ("split_mode", "cache_type_k", "cache_type_v", "flash_attn", "rope_scaling"):
            for word in words:
                ModelSettings(path="x", **{option.name: word})
        if option.name == "drafters":
            LoadSettings(target=ModelSettings(path="x"), drafters=tuple(w for w in words if w != "none"))
