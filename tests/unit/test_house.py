"""The rules of the house: who may import whom, what importing costs, what files look like."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PACKAGE = ROOT / "specllama"
FILES = sorted(PACKAGE.rglob("*.py"))

# Layers from below. A module may import what stands further down, and what its own line allows beside that.
OUTSIDE = (
    *(
        "ggml_types",
        "archs",
        "gguf_strings",
        "gguf_source",
        "gguf_parse",
        "gguf_check",
        "gguf",
        "vocab",
        "vocab_notes",
        "models",
    ),
    *("chat", "chat_marks", "chat_sandbox", "grammar", "llama", "text", "config", "store", "calibrate"),
    *("rpc", "rpc_probe", "llama_rpc", "thinking"),
)
EVERYBODY = {"errors", "settings", "machine"}
FRONT = {
    *EVERYBODY,
    *(
        "core.breakeven",
        "core.params",
        "core.seeds",
        "core.stats",
        "figures",
        "process.client",
        "process.messages",
        "api",
        "data",
    ),
    *OUTSIDE,
}
MAY_IMPORT = {
    "errors": set(),
    "settings": {"errors", "ggml_types"},
    "machine": {"errors"},
    "core": {"core", "errors"},
    "testing": {"core", "errors"},
    "drafters": {"core", "errors", "drafters"},
    **{name: {*EVERYBODY, "core", *OUTSIDE} for name in OUTSIDE},
    "process.messages": set(),
    "process.client": {"process.messages", "process.child", "errors", "settings"},
    "process.child": {"process.messages", "errors"},
    "figures": {"core.stats"},
    "process": {*EVERYBODY, "core", "drafters", *OUTSIDE, "process"},
    "cli": FRONT | {"cli", "bench", "server"},
    "server": FRONT | {"server"},
    "bench": FRONT | {"bench"},
    "api": FRONT,
    "calls": FRONT,
    "data": set(),
    "__main__": {"cli", "errors"},
}
LONGER_THAN_300 = {
    "core/engine.py": "the loop and its slots: one state machine, read as a whole",
    "drafters/copy.py": "index, candidates and edit following share their arrays",
    "llama.py": "the seam: the only file that may know llama_cpp",
    "process/messages.py": "the whole protocol between fronts and engine, one small class a message",
    "models/fit.py": "one search over what fits, with its words for what does not",
}


class Import(NamedTuple):
    importer: str
    imported: str
    line: int
    typing_only: bool


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return "" if name == "__init__" else name.removesuffix(".__init__")


MODULES = {module_name(path) for path in FILES}


def imports_of(path: Path) -> Iterator[Import]:
    """All imports in a file, those inside functions and under TYPE_CHECKING too."""
    tree = ast.parse(path.read_text("utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            base = node.module or ""
            # `from specllama.cli import build` imports specllama.config.build
            names = [
                f"{base}.{alias.name}"
                if f"{base}.{alias.name}".removeprefix("specllama.") in MODULES
                else base
                for alias in node.names
            ]
        else:
            continue
        for name in names:
            yield Import(module_name(path), name, node.lineno, id(node) in typing_only)


ALL_IMPORTS = [i for path in FILES for i in imports_of(path)]
OURS = [i for i in ALL_IMPORTS if i.imported.split(".")[0] == "specllama"]


def within(module: str, group: str) -> bool:
    return module == group or module.startswith(group + ".")


def allowed_for(module: str) -> set[str] | None:
    """What the narrowest group of the module may import."""
    group = max((g for g in MAY_IMPORT if within(module, g)), key=len, default=None)
    return None if group is None else MAY_IMPORT[group]


def fault(importer: str, imported: str) -> str | None:
    """Why this import is not allowed."""
    target = imported.removeprefix("specllama.")
    if importer == "":
        return None  # names for type checkers; at run time they arrive when used
    if imported == "specllama" and importer.startswith(("cli.", "process.", "server.")):
        return None  # the version
    allowed = allowed_for(importer)
    if allowed is None:
        return f"{importer} has no layer: give it one in tests/test_house.py"
    if any(within(target, group) for group in allowed):
        return None
    return f"{importer} may not import {imported}"


def test_no_import_points_up():
    assert [
        f"{fault(i.importer, i.imported)} (line {i.line})" for i in OURS if fault(i.importer, i.imported)
    ] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("core.verify", "specllama.llama.library"),
        ("core.engine", "specllama.config.load"),
        ("drafters.copy", "specllama.llama.library"),
        ("errors", "specllama.core.sampling.params"),
        ("llama", "specllama.worker.engine_core"),
        ("models.fit", "specllama.cli.run"),
        ("process.client", "specllama.core.engine"),
        ("process.messages", "specllama.errors"),
        ("process.host", "specllama.cli.console"),
        ("cli.run", "specllama.worker.engine_core"),
        ("cli.run", "specllama.core.engine"),
        ("something_new", "specllama.errors"),
    ],
)
def test_the_rule_would_see_it(importer, imported):
    assert fault(importer, imported)


def test_no_module_imports_itself_around_corners():
    """Imports at run time form no circle."""
    graph: dict[str, set[str]] = {}
    for i in OURS:
        if not i.typing_only and i.importer:
            graph.setdefault(i.importer, set()).add(i.imported.removeprefix("specllama."))
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*path, module))
            done.add(module)

    for module in list(graph):
        visit(module, ())


def test_only_the_seam_knows_llama_cpp_and_nobody_knows_click():
    assert {i.importer for i in ALL_IMPORTS if i.imported.split(".")[0] == "llama_cpp"} <= {"llama"}
    assert [i for i in ALL_IMPORTS if i.imported.split(".")[0] == "click"] == []


def test_core_needs_numpy_and_the_standard_library_only():
    foreign = {
        i.imported.split(".")[0]
        for i in ALL_IMPORTS
        if within(i.importer, "core") and i.imported.split(".")[0] not in sys.stdlib_module_names
    }
    assert foreign <= {"numpy", "specllama"}


def test_fronts_do_not_need_numpy():
    fronts = (
        "cli",
        "server",
        "process.client",
        "process.messages",
        "settings",
        "errors",
        "config",
        "core.params",
        "core.stats",
    )
    assert [
        i for i in ALL_IMPORTS if i.imported == "numpy" and any(within(i.importer, f) for f in fronts)
    ] == []


HEAVY = (
    "numpy", "llama_cpp", "jinja2", "starlette", "uvicorn", "pydantic", "prometheus_client",
    "huggingface_hub", "httpx2",
)  # fmt: skip


def loaded_after(code: str, *modules: str) -> set[str]:
    """Which of the modules a fresh interpreter has loaded after running the code."""
    script = f"import sys\n{code}\nprint('\\n' + ' '.join(m for m in {modules!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import specllama", *HEAVY, "typer", "rich") == set()


def test_names_of_the_package_arrive_when_used():
    assert (
        loaded_after("from specllama import SamplingParams, LoadSettings, EngineClient, RunStats", *HEAVY)
        == set()
    )


def test_help_loads_nothing_heavy():
    assert (
        loaded_after("from specllama.cli.app import run_app\nassert run_app(['--help']) == 0", *HEAVY)
        == set()
    )


def test_a_server_loads_no_engine():
    assert loaded_after("import specllama.server.main", "numpy", "llama_cpp", "jinja2") == set()


def test_public_names_are_sorted_and_there():
    import specllama

    assert specllama.__all__ == sorted(specllama.__all__)
    for name in specllama.__all__:
        assert getattr(specllama, name).__name__ == name
    assert set(specllama.__all__) <= set(dir(specllama))
    with pytest.raises(AttributeError):
        specllama.nothing_of_this_name  # noqa: B018
    for path in FILES:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = ast.literal_eval(node.value)
                assert names == sorted(names), path


def test_type_hints_are_shipped():
    assert (PACKAGE / "py.typed").is_file()


def test_every_module_says_what_it_knows():
    for path in FILES:
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{path} has no docstring"


def test_files_are_short():
    lengths = {str(p.relative_to(PACKAGE)): len(p.read_text("utf-8").splitlines()) for p in FILES}
    assert {name: n for name, n in lengths.items() if n > 300 and name not in LONGER_THAN_300} == {}
    assert set(LONGER_THAN_300) <= set(lengths)


def test_the_median_file_is_short():
    assert statistics.median(len(p.read_text("utf-8").splitlines()) for p in FILES) < 120


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


def test_no_paths_of_somebodys_machine():
    found = []
    for path in tracked_files():
        data = path.read_bytes()
        if b"\0" in data[:8192] or path == Path(__file__):
            continue
        for n, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if re.search(r"(?<![\w.$}~-])/(work|root|home/[a-z]\w+|Users/\w+)/\w", line):
                found.append(f"{path.relative_to(ROOT)}:{n}: {line.strip()[:80]}")
    assert found == []
