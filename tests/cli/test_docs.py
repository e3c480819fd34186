"""README.md, docs/ and the examples of --help: commands and blocks work, what they name exists.

Python blocks and commands run as they stand, in a folder where main.gguf and draft.gguf are the embedded
pair; answers end after a few tokens. Commands in NOT_RUN are parsed by the real option tables instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from specllama import data
from specllama.cli.app import COMMANDS, app
from specllama.cli.llama_cpp_flags import without_them
from specllama.config.options import LONG_FLAGS, STORED
from specllama.config.sources import NOT_OPTIONS
from specllama.models import manifest
from tests.support import tinyembedders
from tests.support.command import Command
from tests.support.forks import fork_server
from tests.support.paths import ROOT
from tests.support.serving import Server

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
LANGUAGES = {"python", "sh", "text", "toml", "json"}
ON_THE_HUB = {"8B": "main.gguf", "70B": "main.gguf", "1B": "draft.gguf"}
NOT_RUN = {  # what a command begins with, after environment variables: why no test runs it
    "scripts/test": "is what runs this test",
    "scripts/check": "is a part of scripts/test",
    "pip install": "changes the environment that the tests run in",
    "python -m pip install": "the same",
    "scripts/specllama doctor # cuda": "needs a GPU and compiles llama.cpp",
    "docker": "needs Docker",
    "ssh": "needs another machine",
    "specllama run --rpc": "needs other machines; tests/cli/test_rpc_command.py has workers on this one",
    "specllama doctor --rpc": "the same",
    "specllama rpc-worker": "the same",
    "specllama run -m vision.gguf": "needs a model with a projector; tests/cli/test_images.py has one",
    "specllama chat -m vision.gguf": "the same",
    "specllama serve -m vision.gguf": "the same",
    "specllama pull": "needs the hub; tests/cli/test_pull.py has one of its own",
    "specllama pair-check 70B": "the same",
    "specllama models rm": "the same",
    "specllama chat --continue": "needs a conversation; tests/cli/test_chat_saved.py has some",
    "specllama chats rm": "the same",
    "specllama bench -m main.gguf -md draft.gguf --report": "takes minutes; the line after it runs",
    "specllama bench -m main.gguf -md draft.gguf --k": "takes minutes",
    "specllama bench -m main.gguf --without-kernels": "takes minutes; test_bench_command.py has one",
    "specllama bench --server": "takes half a minute; tests/cli/test_bench_server.py runs it",
    "specllama tune": "takes ten seconds or more; tests/cli/test_tune_command.py runs it",
    ".venv/bin/python -m scripts.": "takes minutes to hours",
    "python -m scripts.": "the same",
    ".venv/bin/python -m tests.": "the same",
    "specllama launch": "needs the clients; tests/cli/test_launch.py has some of its own",
    "specllama serve": "runs below, at a free port",
    "git pull": "changes the checkout",
    "curl": "runs below, against a server",
    "smg": "needs other machines; tests/server/test_routers.py has servers on this one",
    "vllm-router": "the same",
}
QUIET = ("export", "specllama models verify")  # nothing to say on stdout
NOT_SERVED = {
    "--host 0.0.0.0": "would listen at all addresses of this machine",
    "--mmproj mmproj-vision": "needs a model that reads images; tests/server/test_images.py has one",
}


@dataclass(frozen=True)
class Line:
    """A command line of a page. words: of each command of its pipe, without environment variables."""

    page: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page}: {self.text[:50]}"

    @property
    def commands(self) -> list[list[str]]:
        lines: list[list[str]] = [[]]
        for word in shlex.split(self.text, comments=True):
            if word == "|":
                lines.append([])
            elif word == ">":
                lines[-1].append("")
            elif lines[-1][-1:] == [""]:
                lines[-1].pop()  # the file that the output goes to
            elif lines[-1] or not re.match(r"[A-Z_]+=", word):
                lines[-1].append(word)
        return lines

    @property
    def bare(self) -> str:
        """The text without variables and comment; a backend that is chosen comes as a comment."""
        text = re.sub(r"^(?:[A-Z_]+=(?:\"[^\"]*\"|\S)+ )+|\s+# .*$", "", self.text)
        return f"{text} # cuda" if "SPECLLAMA_BACKEND=cuda" in self.text else text


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page, text in PAGES.items():
        yield from ((page, block) for kind, block in FENCE.findall(text) if kind == language)


def why_not(line: Line) -> str | None:
    return next((reason for start, reason in NOT_RUN.items() if line.bare.startswith(start)), None)


LINES = [Line(page, text) for page, block in blocks("sh") for text in block.splitlines() if text.strip()]
RUN = list({line.bare: line for line in reversed(LINES) if why_not(line) is None}.values())[::-1]
SERVE = [line for line in LINES if line.text.startswith("specllama serve")]
CURL = [line for line in LINES if line.text.startswith("curl")]
AS_WITH_W = """
import runpy, sys, warnings
warnings.simplefilter("error")
runpy.run_path(sys.argv[1], run_name="__main__")
"""
PYTHON = list({block: page for page, block in blocks("python")}.items())  # the README's comes again
CODE = re.compile(r"`([^`\n]+)`")
HELP = [
    Line(f"{name} --help", text.strip())
    for name, entry in COMMANDS.items()
    for text in re.findall(r"^  ((?:\S+ \S+ \| )?specllama .*)$", entry.examples(), re.M)
]
lines = pytest.mark.parametrize("line", [*LINES, *HELP], ids=lambda line: line.id)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A home with all files that the pages name, and `specllama` on its path."""
    home = tmp_path_factory.mktemp("docs")
    pair = [Path(data.__file__).parent / f"pydoc-{name}.gguf" for name in ("target", "draft")]
    for name, source in zip(("main.gguf", "draft.gguf"), pair, strict=True):
        shutil.copyfile(source, home / name)
    tinyembedders.bert(home / "embedder.gguf")
    tinyembedders.bert(home / "reranker.gguf", "rank")
    (home / "prompt.txt").write_text("What does shutil.copytree do?", "utf-8")
    (home / "schema.json").write_text('{"enum": ["a function", "a class", "a module"]}', "utf-8")
    (home / "keys.txt").write_text("secret\n", "utf-8")
    (home / "saved").mkdir()
    (texts,) = (block for page, block in blocks("json") if page == "docs/measuring.md")
    (home / "edits.json").write_text(texts, "utf-8")
    subprocess.run(["git", "init", "-q"], cwd=home, check=True)
    subprocess.run(["git", "add", "prompt.txt"], cwd=home, check=True)
    (home / "prompt.txt").write_text("What does shutil.copyfile do?", "utf-8")
    installed = home / "bin" / "specllama"
    installed.parent.mkdir()
    made = Command(home)
    if (forks := fork_server(made.environment())) is not None:
        forks.write_command(installed)
    else:
        installed.write_text(f'#!/bin/sh\nexec {sys.executable} -m specllama "$@"\n', "utf-8")
        installed.chmod(0o755)
    made.env |= {"PATH": f"{installed.parent}:{os.environ['PATH']}", "SPECLLAMA_NO_CALIBRATE": "1"}
    return made


@pytest.fixture(scope="module")
def together(command: Command) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Runs command lines, as many at a time as there are cores."""

    def run(*commands: Sequence[str], **env: str) -> list[subprocess.CompletedProcess[str]]:
        def one(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            process = subprocess.Popen(
                words,
                text=True,
                cwd=command.home,
                env=command.environment(env),
                start_new_session=True,
                **pipes,
            )
            try:
                printed = process.communicate("What is os.walk?\n", timeout=120)
                return subprocess.CompletedProcess(words, process.returncode, *printed)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # what it started and left

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(one, commands))

    return run


def test_blocks_say_what_they_are() -> None:
    for page, text in PAGES.items():
        assert {kind for kind, _ in FENCE.findall(text)} <= LANGUAGES, page
        assert text.count("```") == 2 * len(FENCE.findall(text)), page
        outside = FENCE.sub("", text)
        assert not re.search(r"^(?: {4}|\t)\S", outside, re.M), f"{page}: an indented block is not tested"


def test_reasons_are_needed() -> None:
    for start in NOT_RUN:
        assert any(line.bare.startswith(start) for line in LINES), start


@pytest.fixture(scope="module")
def ran(together: Any) -> dict[str, subprocess.CompletedProcess[str]]:
    """What RUN came to, by its text."""
    texts = [line.text for line in RUN]
    names = "|".join(ON_THE_HUB)
    here = [
        re.sub(rf"(?<= )(?:{names})(?= )", lambda match: ON_THE_HUB[match[0]], text).replace("scripts/", "")
        for text in texts
    ]
    shells = (["bash", "-o", "pipefail", "-c", text] for text in here)
    return dict(zip(texts, together(*shells, SPECLLAMA_MAX_TOKENS="16"), strict=True))


@pytest.mark.parametrize("line", RUN, ids=lambda line: line.id)
def test_a_command_runs(line: Line, ran: dict[str, subprocess.CompletedProcess[str]]) -> None:
    done = ran[line.text]
    is_cut = re.search(r"was cut at -n \d+, before its schema", done.stderr)
    assert done.returncode == 0 or is_cut, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip() or line.text.startswith(QUIET) or ">" in line.text


def test_the_first_answer_is_the_one_that_is_shown(command: Command, demo: dict[str, str | None]) -> None:
    """And tokens are drafted and accepted, since it is shown for what drafts gain."""
    shown = next(block for page, block in blocks("text") if page == "README.md")
    assert RUN[0].page == "README.md"
    assert RUN[0].text.startswith("scripts/specllama ")
    for _ in range(3):  # on a busy machine it may have looked as if drafts did not pay
        done = command(*shlex.split(RUN[0].text)[1:], "-v", env=demo)
        first, answer = shown.split("\n", 1)
        assert first in done.err
        assert answer.strip() == done.raw.decode().strip()
        n_drafted, n_accept = (
            int(re.search(rf"{name} += (\d+)", done.err)[1])  # type: ignore[index]
            for name in ("n_drafted", "n_accept")
        )
        if n_accept:
            break
    assert n_drafted >= n_accept > 0, done.err
    assert re.search(r"compare +=.* the same text", done.err)


def test_the_pair_check_is_the_one_that_is_shown(ran: dict[str, subprocess.CompletedProcess[str]]) -> None:
    shown = next(block for page, block in blocks("text") if page == "docs/models.md")
    assert ran["specllama pair-check main.gguf draft.gguf"].stdout.rstrip() == shown.rstrip()


@lines
def test_a_command_parses(line: Line) -> None:
    for words in line.commands:
        if words[0] in ("specllama", "scripts/specllama"):
            parse(words[1:])
        elif words[1:2] == ["-m"]:
            flags_are_there(words[2], words[3:])


@pytest.mark.parametrize("page", PAGES)
def test_code_in_sentences_is_there(page: str) -> None:
    """Commands parse, flags are flags of some command, paths, modules and variables exist."""
    for code in CODE.findall(FENCE.sub("", PAGES[page])):
        assert code_is_there(page, code), code


def test_names_in_files_are_there() -> None:
    pairs = re.findall(r"`(\w+)` in\s+`([\w/.-]+\.\w+)`", PAGES["docs/development.md"])
    assert len(pairs) > 3
    for name, path in pairs:
        assert re.search(rf"\b{name}\b", (ROOT / path).read_text("utf-8")), (name, path)


def test_paths_in_the_changelog_exist() -> None:
    for code in CODE.findall((ROOT / "CHANGELOG.md").read_text("utf-8")):
        if re.fullmatch(r"(?:specllama|scripts|tests|docs)(?:/[\w.-]+)+", code):
            assert (ROOT / code).exists(), code


def test_links_lead_somewhere() -> None:
    def anchors(text: str) -> set[str]:
        headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.M)
        return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            path = (ROOT / page).parent / name if name else ROOT / page
            assert path.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(path.read_text("utf-8")), f"{page}: {target}"


def test_the_readme_is_short_and_names_every_page() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 125
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)\)", PAGES["README.md"]))
    assert linked == set(PAGES) - {"README.md"}


@pytest.fixture(scope="module")
def programs(command: Command, together: Any) -> dict[str, subprocess.CompletedProcess[str]]:
    """What the Python blocks came to."""
    files = [f"example{number}.py" for number in range(len(PYTHON))]
    for file, (code, _) in zip(files, PYTHON, strict=True):
        (command.home / file).write_text(code, "utf-8")
    ended = together([sys.executable, "-W", "error", files[0]])
    ended += [command.python("-c", AS_WITH_W, file, cwd=command.home, timeout=120) for file in files[1:]]
    return dict(zip((code for code, _ in PYTHON), ended, strict=True))


@pytest.mark.parametrize(("code", "page"), PYTHON, ids=[page for _, page in PYTHON])
def test_an_example_runs(code: str, page: str, programs: dict[str, subprocess.CompletedProcess[str]]) -> None:
    done = programs[code]
    said = [line for line in done.stderr.splitlines() if not line.startswith("the tiny embedded model ")]
    assert (done.returncode, said) == (0, []), page
    assert done.stdout.strip()


def test_servers_start_and_answer(command: Command) -> None:
    """Every `specllama serve` starts; the first one answers every curl."""
    servers = [line for line in SERVE if not any(flag in line.text for flag in NOT_SERVED)]
    assert servers[0].page == "README.md"
    assert CURL
    for text in dict.fromkeys(line.text for line in servers):
        with Server(command.home, *shlex.split(text)[2:], "--port", "0") as server:
            if text != servers[0].text:
                assert server.get("/health").status == 200
                continue
            for line in dict.fromkeys(CURL):
                words = [word.replace("http://127.0.0.1:8080", server.url) for word in line.commands[0]]
                done = subprocess.run(
                    [*words, "-sS", "--fail-with-body"], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, (line, done.stdout, done.stderr)
                assert json.loads(done.stdout)


def test_settings_and_models_are_read(tmp_path: Path) -> None:
    examples = list(blocks("toml"))
    assert examples
    for page, block in examples:
        if page == "docs/models.md":
            (tmp_path / manifest.FILE).write_text(block, "utf-8")
            known = manifest.load({"SPECLLAMA_MODELS": str(tmp_path / manifest.FILE)}, tmp_path)
            assert {"mine", "own"} & {*known.names(), *known.files}
        else:
            assert set(tomllib.loads(block)) <= set(STORED), page


def test_json_is_json() -> None:
    for _, block in blocks("json"):
        assert json.loads(block)


def test_figures_are_those_that_were_measured(tmp_path: Path) -> None:
    """Every row and every total that scripts/bench/peers/table.py makes of the raw figures is on the page."""
    done = Command(tmp_path).python("-m", "scripts.bench.peers.table", "docs/benchmarks.json")
    assert done.returncode == 0, done.stderr
    n_cells = len(json.loads((ROOT / "docs" / "benchmarks.json").read_text("utf-8"))["cells"])
    page = PAGES["docs/benchmarks.md"]
    made = [line for line in done.stdout.splitlines() if re.match(r"\| \w|- .*: \d\.\d\d", line)]
    assert len(made) > n_cells
    rows, numbers = set(page.splitlines()), re.compile(r"\d+\.\d\d|\d+ (?=cell|choice)|\([^()]*T=[\d.]+\)")
    printed = {tuple(numbers.findall(line)) for line in rows if line.startswith("- ")}
    for line in made[:4]:
        mean, worst = re.findall(r"(?:: |worst )(\d\.\d\d)", line)
        assert any(f"| {mean} x | {worst} |" in row for row in rows), f"the first table lacks: {line}"
    for line in made:
        if line.startswith("- "):
            assert tuple(numbers.findall(line)) in printed, line
        elif "T=" in line or re.search(r"\d\.\d\d", line):
            assert line in rows, line


def code_is_there(page: str, code: str) -> bool:
    """Whether what stands between backticks exists, as far as it is something that can."""
    words = code.split()
    flags = {word for word in words if re.match(r"--?[a-z]", word)}
    if words[0] in ("specllama", "scripts/specllama") and len(words) > 1:
        if words[1].startswith("-") or words[-1] == "--help":
            return flags <= SOME_FLAG
        if len(words) == 2 and words[1] in COMMANDS:
            return True  # its name alone, without what it needs
        parse(words[1:])
    elif words[0] in FLAGS:
        return flags <= FLAGS[words[0]]
    elif re.match(r"--?[a-z]", code) and page != "docs/benchmarks.md":
        return words[0] in SOME_FLAG or without_them(["run", words[0]], [])[1] == [words[0]]
    elif match := re.search(r"\bpython -m (\S+)(.*)", code):
        flags_are_there(match[1], match[2].split())
    elif re.fullmatch(r"(?:scripts|training|tests)(\.\w+)+", code):
        return module_file(code) is not None
    elif re.fullmatch(r"(?:specllama|scripts|installer|training|tests|docs|\.ci)(?:/[\w.-]+)+", code):
        return (ROOT / code).exists() or code == "scripts/bench_peers.py"  # as it was called then
    elif variable := re.match(r"SPECLLAMA_([A-Z_]+)", code):
        name = variable[1].lower()
        elsewhere = variable[0] in NOT_OPTIONS or name in ("api_key", "service_host")
        return elsewhere or name in STORED or name in LONG_FLAGS
    return True


def parse(words: Sequence[str]) -> None:
    """Parse a command line of specllama by its own option tables, without running it."""
    if words[0] in COMMANDS:
        words, *_ = without_them(words, COMMANDS[words[0]].table())  # --continue may stand without a name
    command: Any = typer.main.get_command(app)
    name, rest = "specllama", list(words)
    with contextlib.ExitStack() as stack:
        context: Any = None
        while command is not None:
            context = stack.enter_context(command.make_context(name, rest, parent=context))
            rest = [*context._protected_args, *context.args]
            if not isinstance(command, typer.core.TyperGroup) or not rest:
                return
            name, command, rest = command.resolve_command(context, rest)


FLAGS = {
    name: {flag for option in entry.table() for flag in option.flags} for name, entry in COMMANDS.items()
}
FLAGS["specllama"] = {"--install-completion", "--version"}
SOME_FLAG = {"--help", *set().union(*FLAGS.values())}


def module_file(name: str) -> Path | None:
    """The file of a module of scripts, training or tests."""
    path = ROOT / Path(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def flags_are_there(module: str, words: Sequence[str]) -> None:
    """The module exists and knows the flags. Other projects' programs are not looked at."""
    if module in ("build", "pip"):
        return
    file = module_file(module)
    assert file, module
    text = file.read_text("utf-8")
    for word in words:
        assert not re.match(r"--?[a-z]", word) or f'"{word}"' in text or f" {word} " in text, (module, word)
