"""What README.md and docs/ claim about routes, dialects, exit codes, clients, commands and metrics is so.

Where a page lists all of something, the list is compared in both directions. Flags of commands and paths of
files are compared by tests/cli/test_docs.py, docs/options.md by tests/unit/config/test_options.py.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import signal
from collections.abc import Iterator

import pytest

from specllama import errors
from specllama.calls.formats import FORMATS, GENERIC
from specllama.cli.app import COMMANDS
from specllama.cli.chat import commands as chat
from specllama.cli.launch.client import NAMES
from specllama.drafters import REGISTRY
from specllama.server import app, dialects, page
from specllama.server.metrics import HttpMetrics, Metrics
from tests.support.paths import ROOT

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
README, SERVE, RUN = PAGES["README.md"], PAGES["docs/serve.md"], PAGES["docs/run.md"]
CODE = re.compile(r"`([^`\n]+)`")
PARAMETER = re.compile(r"/(?:NAME|N|ID|{[^}]*})(?=/|$)")
DIALECTS = {  # a dialect's package: its name in the documents
    "openai": "OpenAI",
    "llama_server": "llama-server",
    "anthropic": "Anthropic",
    "lm_studio": "LM Studio",
    "ollama": "Ollama",
}
CLIENTS = {  # a client of `launch`: its name in the documents
    "codex": "Codex",
    "claude": "Claude Code",
    "opencode": "opencode",
    "cline": "Cline",
    "continue": "Continue",
    "llm": "llm",
    "aider": "aider",
    "open-webui": "Open WebUI",
}


def rows(text: str, head: str) -> list[list[str]]:
    """The cells of the table that begins with this line, without its head."""
    table = text.partition(f"\n{head}\n")[2].partition("\n\n")[0]
    assert table, f"there is no table {head}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]


def routes(text: str) -> set[str]:
    """Routes that are named with their method, their parameters as *."""
    named = re.findall(r"`(GET|POST|DELETE|PUT) (/[^`?\s]*)[^`]*`", text)
    return {f"{method} {PARAMETER.sub('/*', path)}" for method, path in named}


SERVED = {f"{route.method} {PARAMETER.sub('/*', route.path)}" for route in app.ROUTES}
OF_THE_PAGE = {f"{route.method} {route.path}" for route in page.ROUTES} - {"GET /"}


def test_all_routes_are_listed() -> None:
    listed = routes("\n".join(cells[0] for cells in rows(SERVE, "| route | |")))
    assert listed == SERVED - OF_THE_PAGE


@pytest.mark.parametrize("name", PAGES)
def test_routes_exist(name: str) -> None:
    assert routes(PAGES[name]) <= SERVED
    paths = {route.split(" ")[1] for route in SERVED}
    for code in CODE.findall(PAGES[name]):
        if re.fullmatch(r"/(?:v1|api)/[\w/-]+", code):
            assert code in paths, code


def test_all_dialects_are_named() -> None:
    names = (f"{entry.name}{'.routes' * entry.ispkg}" for entry in pkgutil.iter_modules(dialects.__path__))
    modules = {
        name.removesuffix(".routes"): importlib.import_module(f"{dialects.__name__}.{name}")
        for name in names
        if importlib.util.find_spec(f"{dialects.__name__}.{name}")  # a package need not have routes
    }
    served = {name: module.DIALECT for name, module in modules.items() if hasattr(module, "DIALECT")}
    assert set(served) == set(DIALECTS)
    assert sorted(map(id, served.values())) == sorted(map(id, app.DIALECTS))
    serve = README.partition("\n## Serve\n")[2].partition("\n## ")[0]
    for name in DIALECTS.values():
        assert name in serve, f"README, Serve: {name}"
        assert name in SERVE


def classes(base: type[errors.SpecllamaError]) -> Iterator[type[errors.SpecllamaError]]:
    yield base
    for cls in base.__subclasses__():
        yield from classes(cls)


OURS = [cls for cls in classes(errors.SpecllamaError) if cls.__module__ == errors.__name__]
CODES = {cls.exit_code for cls in classes(errors.SpecllamaError)}


def test_all_exit_codes_are_listed() -> None:
    of_signals = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)}
    listed = {int(code) for cells in rows(RUN, "| code | |") for code in cells[0].split(", ")}
    assert listed == {0, *CODES, *of_signals}


@pytest.mark.parametrize("name", PAGES)
def test_exit_codes_exist(name: str) -> None:
    named = re.findall(r"exit code(?: is|:)? (\d+)", " ".join(PAGES[name].split()))
    assert {int(code) for code in named} <= {0, *CODES}


def test_the_tree_of_errors_is_that_of_the_classes() -> None:
    listed = re.findall(r"^[\W]*(\w+Error) +(\d+) +(\d+) ", errors.__doc__ or "", re.M)
    assert listed == [(cls.__name__, str(cls.exit_code), str(cls.http_status)) for cls in OURS]


def test_all_clients_of_launch_are_named() -> None:
    assert set(NAMES) == set(CLIENTS)
    assert ", ".join(CLIENTS.values()) in README
    launch = PAGES["docs/clients.md"].partition("\n## Launch\n")[2]
    for name in CLIENTS.values():
        assert name in launch, name


def test_evidence_of_clients_is_there() -> None:
    named = re.findall(r"`(?:tests/\w+/)?(test_\w+\.py)`", PAGES["docs/clients.md"])
    there = {path.name for path in ROOT.glob("tests/*/test_*.py")}
    assert len(named) > 10
    assert set(named) <= there


def test_all_commands_are_named() -> None:
    text = "".join(PAGES.values())
    for name in COMMANDS:
        assert re.search(rf"\bspecllama {name}\b", text), name


def test_commands_of_chat_exist() -> None:
    named = {code.split()[0] for code in CODE.findall(RUN) if re.match(r"/[a-z]+(?: |$)", code)}
    assert named
    assert named <= {*chat.COMMANDS, *chat._ALIASES}


def test_sources_of_tokens_are_listed() -> None:
    listed = re.search(r"The source is\s+((?:`\w+`(?:,| or)?\s*)+)", SERVE)
    assert listed
    assert set(CODE.findall(listed[1])) == {"target", *REGISTRY}


def test_all_formats_of_calls_are_listed() -> None:
    table = rows(PAGES["docs/tools.md"], "| name | models | a call |")
    listed = [name for cells in table for name in CODE.findall(cells[0])]
    assert len(listed) == len(set(listed))
    assert set(listed) == {form.name for form in (*FORMATS, GENERIC)}


def test_metrics_exist() -> None:
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = [*Metrics("").registry.collect(), *HttpMetrics().registry.collect()]
    names = {family.name + ending for family in families for ending in endings[family.type]}
    dashboard = (ROOT / "docs" / "grafana.json").read_text("utf-8")
    for text in (dashboard, *PAGES.values()):
        assert set(re.findall(r"\bspecllama_\w*[a-z]\b(?!\.)", text)) <= names
