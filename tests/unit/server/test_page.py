"""The files of the page: how large they are, and what must not be in them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from specllama.core.sampling.params import PARAMETERS
from specllama.server.page import POLICY, ROUTES, _index, generated_files, page_files

LIMIT = 640_000  # bytes of all files that the page can load
FIRST = 322_000  # bytes of those that the page loads at once
FILES = page_files()
GENERATED = generated_files()
OWN = {name: path.read_text("utf-8") for name, path in FILES.items() if not name.startswith("vendor/")}
SCRIPTS = {name: text for name, text in OWN.items() if name.endswith(".js")}


class Elements(HTMLParser):
    """The start tags of a document, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


INDEX = Elements(OWN["index.html"]).elements
LOADED = {attributes["src"] or "" for tag, attributes in INDEX if tag == "script"}
LOADED |= {attributes["href"] or "" for tag, attributes in INDEX if tag == "link"}


def imported(name: str) -> set[str]:
    """What a script imports when it is loaded, by the paths of the files."""
    targets = re.findall(r"""(?m)^(?:import|export) (?:.*?from )?["'](.*?)["'];""", SCRIPTS.get(name, ""))
    return {target.removeprefix("./") for target in targets}


def test_all_files_together_are_small() -> None:
    licences = [name for name in FILES if name.endswith(".LICENSE.txt")]  # no page loads them
    assert sum(path.stat().st_size for name, path in FILES.items() if name not in licences) < LIMIT


def test_the_initial_load_is_small() -> None:
    """Formulas, colours of code and dialogs are loaded when they are needed."""
    loaded = {"index.html", *(path.removeprefix("page/") for path in LOADED)}
    while more := {target for name in loaded for target in imported(name)} - loaded - set(GENERATED):
        loaded |= more
    assert "vendor/marked.esm.js" in loaded
    assert not {name for name in loaded if "temml" in name or "highlight" in name or "languages" in name}
    assert sum(FILES[name].stat().st_size for name in loaded) < FIRST


def test_the_document_names_what_is_loaded_at_once() -> None:
    """So that the browser asks for all of it together."""
    document = Elements(_index().decode()).elements
    preloaded = {attributes["href"] for _, attributes in document if attributes.get("rel") == "modulepreload"}
    loaded = {"app.js"}
    while more := {target for name in loaded for target in imported(name)} - loaded:
        loaded |= more
    assert preloaded == {f"page/{name}" for name in loaded}
    assert {"page/parameters.js", "page/vendor/marked.esm.js"} <= preloaded


def test_every_file_is_served_without_a_key() -> None:
    paths = {route.path for route in ROUTES if route.open and route.method == "GET"}
    assert paths == {"/", *(f"/page/{name}" for name in (*FILES, *GENERATED))}


def test_vendored_files_have_their_licences() -> None:
    code = {name.removesuffix(".js").split(".")[0] for name in FILES if re.fullmatch(r"vendor/.*\.js", name)}
    languages = {name for name in code if name.startswith("vendor/languages/")}
    assert languages  # of the library that colours code
    assert code - languages == {f"vendor/{name}" for name in ("highlight", "marked", "purify", "temml")}
    assert all(FILES[f"{name}.LICENSE.txt"].stat().st_size > 1000 for name in code - languages)


def test_the_policy_allows_this_server_alone() -> None:
    allowed = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert allowed.pop("default-src") == "'none'"
    assert allowed.pop("trusted-types") == "dompurify"
    assert allowed.pop("img-src") == "'self' blob:"  # those that the user attaches
    assert set(allowed.values()) == {"'self'", "'none'", "'script'"}
    assert "unsafe" not in POLICY


def test_nothing_is_inline() -> None:
    """The policy refuses handlers, styles and scripts in the document."""
    for tag, attributes in INDEX:
        assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
        assert tag != "style"
        assert tag != "script" or attributes.get("src")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_parse_no_html_and_run_no_text(name: str) -> None:
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in SCRIPTS[name]
    assert not re.search(r"setAttribute\(\s*[\"']on", SCRIPTS[name])


@pytest.mark.parametrize("name", OWN)
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", OWN[name])
    assert [a for a in addresses if a != "http://www.w3.org/2000/svg"] == []
    assert "@import" not in OWN[name]
    assert "url(" not in OWN[name]


def test_imports_lead_to_files() -> None:
    assert {f"page/{name}" for name in FILES} >= LOADED, "a proxy may offer the page at another path"
    imports = {
        target
        for text in SCRIPTS.values()
        for target in re.findall(r"""(?m)^import .*?["'](.*?)["'];""", text)
    }
    later = {
        target for text in SCRIPTS.values() for target in re.findall(r"""import\(["'](.*?)["']\)""", text)
    }
    assert imports
    assert later
    assert imports | later <= {f"./{name}" for name in (*FILES, *GENERATED)}


def test_each_language_of_code_has_its_file() -> None:
    listed = re.search(r"const LANGUAGES = \{(.*?)\};", SCRIPTS["colours.js"], re.S)
    assert listed is not None
    named = set(re.findall(r': "(\w+)"', listed[1]))
    assert {f"vendor/languages/{name}.js" for name in named} == {
        name for name in FILES if name.startswith("vendor/languages/")
    }


def test_settings_are_the_sampling_parameters() -> None:
    """What the page says of a parameter in its own words is of one that there is."""
    listed = json.loads(GENERATED["parameters.js"].removeprefix("export const PARAMETERS = ").rstrip(";\n"))
    known = {p.name for p in PARAMETERS.values() if p.stored and p.name != "logit_bias"}
    assert set(listed) == known
    assert 'export const NAMES = [...PARAMETERS, "draft_max"];' in SCRIPTS["settings.js"]
    help_of = re.search(r"const HELP = \{(.*?)\n\};", SCRIPTS["settings_dialog.js"], re.S)
    assert help_of is not None
    assert set(re.findall(r"(?m)^\t(\w+):", help_of[1])) <= known | {"draft_max"}


def test_elements_that_scripts_use_are_there() -> None:
    ids = {attributes["id"] for _, attributes in INDEX if "id" in attributes}
    assert len(ids) == sum("id" in attributes for _, attributes in INDEX)
    used = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert used
    assert used <= ids


def test_each_source_has_a_colour_and_a_line_of_its_own() -> None:
    style = OWN["style.css"]
    rules = re.findall(r'(?m)^\.tint \[data-source="(\w+)"\], .*\{(.*)\}', style)
    styles = dict(rules)
    assert set(styles) == {"target", "model", "head", "copy", "memory", "grammar"}
    drafted = {name: rule for name, rule in styles.items() if name != "target"}
    for what in (r"--on: (\S+);", r"text-decoration-style: (\w+)"):
        assert len({re.findall(what, rule)[0] for rule in drafted.values()}) == len(drafted)
