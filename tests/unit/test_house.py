"""The rules of the house: who may import whom, what importing costs, what files look like."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "specllama"
FILES = sorted(PACKAGE.rglob("*.py"))

# Folders of the package, from below: each may import itself and what stands above it in this list, unless
# its entry in ONLY says less. A file of the package's root counts as a folder.
LAYERS = (
    "json_types", "errors", "option", "wording", "clock", "processor_time", "python_command", "large_memory",
    "regular_file", "other_work", "stored_figures", "wire", "core", "drafters",
    "testing", "gguf", "heads", "rpc", "config", "prefix_disk", "pair", "text", "calls", "data", "models",
    "llama", "client", "images", "worker", "api", "bench", "server", "cli", "__main__",
)  # fmt: skip
FRONTS = ("api", "bench", "server", "cli")
BASICS = (
    "json_types", "errors", "option", "wording", "clock", "processor_time", "python_command", "regular_file",
    "other_work", "wire",
)  # fmt: skip
LIGHT_CORE = ("core.sampling.params", "core.gain", "core.repetition", "core.stats", "core.replay.break_even")
ONLY: dict[str, tuple[str, ...]] = {
    "json_types": (),
    "wording": (),
    "option": ("errors",),
    "clock": (),
    "processor_time": ("clock",),
    "python_command": (),
    "large_memory": (),
    "other_work": (),
    "regular_file": (),
    "stored_figures": (),
    "wire": ("regular_file",),
    "core": ("errors", "option", "stored_figures", "wire"),
    "drafters": ("core", "errors"),
    "testing": ("core", "drafters", "errors"),
    "heads": ("errors", "wording", "gguf", "regular_file"),
    "data": (),
    "prefix_disk": (
        *("errors", "clock", "large_memory", "regular_file", "stored_figures", "wire", "config"),
        "gguf.header",
    ),
    "client": (*BASICS, "config", "calls", "prefix_disk.scopes", *LIGHT_CORE),
    "images": ("errors", "regular_file", "client.protocol"),
    "__main__": ("cli", "errors", "python_command"),
    **dict.fromkeys(
        FRONTS,
        (
            *(*BASICS, *LIGHT_CORE, "gguf", "heads", "rpc", "config", "pair", "text", "calls", "data"),
            *("models", "client", "prefix_disk", "images"),
        ),
    ),
    "worker": (
        *(*BASICS, "core", "drafters", "gguf", "heads", "rpc", "config", "pair", "text", "calls", "data"),
        *("models", "llama", "prefix_disk", "stored_figures"),
        *("client.protocol", "client.model_info", "client.tune_messages", "client.tune_messages"),
    ),
}  # fmt: skip
ONLY["cli"] += ("bench", "server")
EXTENDED = ("drafters", "heads", "calls", "cli", "server.dialects")  # one file an item
SHORTER_THAN_60 = {
    **dict.fromkeys(("json_types", "wording", "regular_file", "stored_figures"), "a layer"),
    **dict.fromkeys(
        ("gguf.split", "prefix_disk.scopes"),
        "fronts import it, and not numpy or what renders templates",
    ),
    **dict.fromkeys(("text.terminal", "core.repetition", "models.hub.env"), "fronts import it"),
    "config.defaults": "numbers that several layers share",
    "core.verify": "the proof that drafts change no token",
}
MOST_FILES, MOST_LINES = 304, 68_700


class Import(NamedTuple):
    """An import of one module by another, names of the package without `specllama.`."""

    importer: str
    imported: str
    line: int


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return "" if name == "__init__" else name.removesuffix(".__init__")


MODULES = {module_name(path) for path in FILES}


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path) -> Iterator[Import]:
    """All imports in a file, those inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            base = node.module or ""
            # `from specllama.cli import console` imports specllama.cli.console
            names = [
                f"{base}.{alias.name}"
                if f"{base}.{alias.name}".removeprefix("specllama.") in MODULES
                else base
                for alias in node.names
            ]
        else:
            continue
        for name in names:
            yield Import(module_name(path), name, node.lineno)


@functools.cache
def all_imports() -> list[Import]:
    return [i for path in FILES for i in imports_of(path)]


@functools.cache
def ours() -> list[Import]:
    """Those of the package, by names without `specllama.`."""
    return [
        i._replace(imported=i.imported.removeprefix("specllama."))
        for i in all_imports()
        if i.imported.startswith("specllama.")
    ]


def folder(module: str) -> str:
    return module.split(".")[0]


def within(module: str, group: str) -> bool:
    return module == group or module.startswith(group + ".")


def fault(importer: str, imported: str) -> str | None:
    """Why this import is not allowed; both without `specllama.`."""
    here, there = folder(importer), folder(imported)
    if importer == "" or here == there:  # the root's names are for type checkers, and arrive when used
        return None
    if not {here, there} <= set(LAYERS):
        return f"{here} or {there} has no layer: give it one in LAYERS"
    below = LAYERS.index(there) < LAYERS.index(here)
    allowed = ONLY.get(here)
    if below and (allowed is None or any(within(imported, group) for group in allowed)):
        return None
    return f"{importer} may not import {imported}"


def test_no_import_points_up() -> None:
    upward = [(fault(i.importer, i.imported), i.line) for i in ours()]
    assert [f"{why} (line {line})" for why, line in upward if why] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core.verify", "llama.context"),
        ("core.engine", "config.load"),
        ("core.engine", "testing"),
        ("drafters.copy", "llama.context"),
        ("heads.mtp", "llama.context"),
        ("gguf.check", "heads"),
        ("errors", "core.sampling.params"),
        ("llama.context", "worker.engine_core"),
        ("models.prepare", "cli.run"),
        ("client.client", "core.engine"),
        ("client.protocol", "worker.engine_core"),
        ("worker.engine_core", "cli.console"),
        ("worker.main", "client.client"),
        ("cli.run", "worker.engine_core"),
        ("cli.run", "core.engine"),
        ("server.app", "drafters.copy"),
        ("api.llm", "llama.library"),
        ("bench.runner", "cli.console"),
        ("something_new", "errors"),
    ],
)
def test_the_rule_would_see_it(importer: str, imported: str) -> None:
    assert fault(importer, imported)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The first circle of a directed graph, [] without one."""
    done: set[str] = set()

    def visit(node: str, path: tuple[str, ...]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for other in sorted(graph.get(node, ())):
                if cycle := visit(other, (*path, node)):
                    return cycle
            done.add(node)
        return []

    return next((cycle for node in sorted(graph) if (cycle := visit(node, ()))), [])


def test_modules_form_no_circle() -> None:
    """Imports for type checkers alone included."""
    graph: dict[str, set[str]] = {}
    for i in ours():
        if i.importer:
            graph.setdefault(i.importer, set()).add(i.imported)
    assert circle(graph) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_modules_of_the_page_form_no_circle() -> None:
    """Those that are imported when they are used included."""
    imported = re.compile(r"""(?:\bfrom|\bimport|\bimport\() ?["']\./([\w.]+)["']""")
    files = list((PACKAGE / "server/static").glob("*.js"))
    graph = {path.name: set(imported.findall(path.read_text("utf-8"))) for path in files}
    assert circle(graph) == []
    assert graph["card.js"] >= {"race.js", "dom.js"}


def test_nobody_imports_the_worker() -> None:
    assert [i for i in ours() if folder(i.imported) == "worker" and folder(i.importer) != "worker"] == []


DIALECTS = "server.dialects"


def dialect(module: str) -> str:
    """The dialect that a module belongs to, "shared" for what they share, "" for other modules."""
    return module.removeprefix(f"{DIALECTS}.").split(".")[0] if within(module, DIALECTS) else ""


def dialect_fault(importer: str, imported: str) -> str | None:
    """Why a module may not import this one of a dialect. server/app.py alone knows the dialects."""
    other = dialect(imported)
    if other in ("", "shared", dialect(importer)) or importer == "server.app":
        return None
    return f"{importer} may not import {imported}: what dialects share is in {DIALECTS}.shared"


def test_no_dialect_imports_another() -> None:
    assert [why for i in ours() if (why := dialect_fault(i.importer, i.imported))] == []
    assert dialect_fault("server.dialects.ollama.writer", "server.dialects.openai.writer")
    assert dialect_fault("server.dialects.shared.base", "server.dialects.openai.errors")
    assert dialect_fault("server.requests", "server.dialects.openai.writer")
    assert not dialect_fault("server.dialects.lm_studio", "server.dialects.shared.base")


def test_only_the_seam_knows_llama_cpp_and_nobody_knows_click() -> None:
    assert {folder(i.importer) for i in all_imports() if i.imported.split(".")[0] == "llama_cpp"} <= {"llama"}
    assert [i for i in all_imports() if i.imported.split(".")[0] == "click"] == []


def test_core_needs_numpy_and_the_standard_library_only() -> None:
    foreign = {
        i.imported.split(".")[0]
        for i in all_imports()
        if folder(i.importer) == "core" and i.imported.split(".")[0] not in sys.stdlib_module_names
    }
    assert foreign <= {"numpy", "specllama"}


def test_fronts_do_not_need_numpy() -> None:
    fronts = ("cli", "server", "client", "config", "errors", *LIGHT_CORE)
    assert [
        i for i in all_imports() if i.imported == "numpy" and any(within(i.importer, f) for f in fronts)
    ] == []


def test_only_the_console_writes_to_the_streams_of_a_front() -> None:
    """There the text passes the filter for terminals; what goes around it has no text of others."""
    unfiltered = {"cli.progress", "cli.chat.terminal"}
    writers = set()
    for path in FILES:
        name = module_name(path)
        if folder(name) not in FRONTS or name == "cli.console":
            continue
        for node in ast.walk(tree(path)):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called == "print" or re.fullmatch(r"sys\.std(out|err)\.(buffer\.)?write", called):
                writers.add(f"{name}, line {node.lineno}: {called}")
            if called == "console.write" and name not in unfiltered:
                writers.add(f"{name}, line {node.lineno}: {called}")
    assert writers == set()


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for path in FILES
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, n in names.items() if n > 1} == set()


HEAVY = (
    "numpy", "llama_cpp", "jinja2", "starlette", "uvicorn", "pydantic", "prometheus_client",
    "huggingface_hub", "httpx2", "PIL",
)  # fmt: skip


def loaded_after(code: str, *modules: str) -> set[str]:
    """Which of the modules a fresh interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(m for m in {modules!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


RUN_WITHOUT_MODEL = """
from specllama.cli.app import run_app
import specllama.client.client
assert run_app(["run", "-p", "Hi", "-m", "nowhere.gguf"]) > 1
"""
DRAFT_OF_THE_EMBEDDED_TARGET = """
from specllama.models.prepare import known_draft
from specllama.models.resolve import Library
library = Library()
assert known_draft(library, library.on_disk(library.parse("pydoc", "-m"), "-m")) is not None
"""


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import specllama", (*HEAVY, "typer", "rich")),
        ("from specllama import SamplingParams, LoadSettings, EngineClient, RunStats", HEAVY),
        ("from specllama.cli.app import run_app\nassert run_app(['--help']) == 0", HEAVY),
        # Nor what reads the headers of models that come with the program.
        (RUN_WITHOUT_MODEL, (*HEAVY, "asyncio", "importlib.metadata")),
        ("\n".join(f"import specllama.{module}" for module in LIGHT_CORE), HEAVY),
        ("import specllama.server.main", ("numpy", "llama_cpp", "jinja2")),
        (DRAFT_OF_THE_EMBEDDED_TARGET, ("numpy",)),
    ],
    ids=["import", "names", "help", "before the engine answers", "core", "server", "known draft"],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str, modules: tuple[str, ...]) -> None:
    assert loaded_after(code, *modules) == set()


def test_no_front_renders_a_template() -> None:
    """A template of a downloaded file runs in the engine process, which can be ended."""
    fronts = ("cli", "server", "api", "bench", "client")
    rendering = ("text.chat_template", "text.template_process")
    imports = [i for i in ours() if i.imported in rendering]
    assert [i for i in imports if folder(i.importer) in fronts] == []
    assert imports


def test_templates_run_in_their_process_alone() -> None:
    """Nothing that runs with them in one process could be limited."""
    assert {i.importer for i in ours() if i.imported == "text.chat_template"} == {"text.template_process"}
    assert {i.importer for i in all_imports() if i.imported.split(".")[0] == "jinja2"} == {
        "text.chat_template"
    }


def test_one_clock_measures_time() -> None:
    """The others go on while the process stands still; the time of day is only shown, or compared with that
    of another program.
    """
    times_of_day = {
        "models.progress", "server.dialects.ollama", "server.dialects.shared.writer",
        "server.dialects.openai.responses.writer", "server.service", "cli.cache", "cli.chats",
        "cli.doctor.report", "worker.profile",
    }  # fmt: skip
    clocks = {
        (module_name(path), node.attr)
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("time", "asyncio")
        if node.attr in ("time", "monotonic", "monotonic_ns", "time_ns", "perf_counter", "run")
    }
    assert {name for name, clock in clocks if clock == "time"} == times_of_day
    assert {(name, clock) for name, clock in clocks if clock != "time"} == {("clock", "perf_counter")}


def test_files_of_its_own_are_opened_as_regular_ones() -> None:
    """A FIFO in the place of one would hang the program, see regular_file.py. Elsewhere are read: files that
    a user names, /proc and the like, and what the package itself contains.
    """
    others = {
        "config.text_file", "llama.kernels", "llama.kernel_build", "llama.vision_build",
        "models.memory.available",
        "processor_time", "text.template_process", "other_work", "cli.doctor.report", "server.page",
        "bench.report",
    }  # fmt: skip
    readers = set()
    for path in FILES:
        for node in (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)):
            name, arguments = ast.unparse(node.func), [ast.unparse(argument) for argument in node.args]
            writes = any(set("wxa+") & set(mode) for mode in arguments[1:])
            reads = (name == "open" and not writes) or (name.endswith(".open") and "'rb'" in arguments)
            if reads or name.endswith((".read_text", ".read_bytes")):
                readers.add(module_name(path))
    assert readers - {"regular_file"} == others


def test_public_names_are_sorted_and_there() -> None:
    import specllama

    assert specllama.__all__ == sorted(specllama.__all__)
    for name in specllama.__all__:
        assert getattr(specllama, name).__name__ == name
    assert set(specllama.__all__) <= set(dir(specllama))
    with pytest.raises(AttributeError):
        specllama.nothing_of_this_name  # noqa: B018
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert names == sorted(names), path


def test_type_hints_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_module_says_what_it_knows() -> None:
    for path in FILES:
        assert ast.get_docstring(tree(path)), f"{path} has no docstring"


def test_names_say_what_they_hold() -> None:
    placeholders = {"found", "shall"}
    used = set()
    for path in FILES:
        for node in ast.walk(tree(path)):
            name = getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "attr", None)
            if name in placeholders:
                used.add(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert used == set()


def test_files_are_short() -> None:
    lengths = {str(p.relative_to(PACKAGE)): len(p.read_text("utf-8").splitlines()) for p in FILES}
    assert {name: n for name, n in lengths.items() if n > 600} == {}


def test_files_hold_what_is_read_together() -> None:
    """A short file is a place of its own for a reason, or one item of a folder of such."""
    short = {
        module_name(p): n
        for p in FILES
        if (n := len(p.read_text("utf-8").splitlines())) < 60 and p.name not in ("__init__.py", "__main__.py")
        if not any(within(module_name(p), folder) for folder in EXTENDED)
    }
    assert {name: n for name, n in short.items() if name not in SHORTER_THAN_60} == {}
    assert set(SHORTER_THAN_60) - set(short) == set()


def test_the_package_keeps_to_its_budget() -> None:
    """A feature first asks what it can replace."""
    assert len(FILES) <= MOST_FILES
    assert sum(len(p.read_text("utf-8").splitlines()) for p in FILES) <= MOST_LINES


def test_tests_mirror_the_package() -> None:
    """A folder of tests/unit is one of the package; the others are the kinds of tests that need processes."""
    tests = ROOT / "tests"
    kinds = {p.name for p in tests.iterdir() if p.is_dir() and not p.name.startswith("_")}
    with_processes = {"agents", "api", "browser", "cli", "engine", "faults", "scripts", "server", "worker"}
    campaigns = {"fuzz", "kernel_checks", "soak"}  # commands of their own
    assert kinds == {"unit", "support", "golden"} | with_processes | campaigns
    units = {p.parent.relative_to(tests / "unit") for p in (tests / "unit").rglob("test_*.py")}
    assert [str(unit) for unit in units if not (PACKAGE / unit).is_dir()] == []


IMPORTED = re.compile(r"^\s*(?:from|import) (\w+)", re.M)  # the top package, also in functions and templates


def test_neither_scripts_nor_tests_import_each_other() -> None:
    """Tests run the scripts' commands. The installer and the training are of neither."""
    folders = ("scripts", "tests", "installer", "training")
    may = {
        "scripts": {"scripts", "installer"},
        "tests": {"tests", "installer"},
        "installer": set(),
        "training": {"training", "scripts"},
    }
    wrong = {
        (path.relative_to(ROOT).as_posix(), top)
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for top in set(IMPORTED.findall(path.read_text("utf-8"))) & set(folders) - may[folder]
    }
    assert wrong == set()


def tracked_files() -> list[Path]:
    asked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in asked.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_paths_of_somebodys_machine() -> None:
    lines = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:8192] or path == Path(__file__):
            continue
        for n, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if re.search(r"(?<![\w.$}~-])/(work|root|home/[a-z]\w+|Users/\w+)/\w", line):
                lines.append(f"{path.relative_to(ROOT)}:{n}: {line.strip()[:80]}")
    assert lines == []
