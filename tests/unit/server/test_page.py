"""The files of the page: how large they are, and what must not be in them."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from specllama.server.page import POLICY, ROUTES, page_files

LIMIT = 300_000  # bytes of all files together
FILES = page_files()
OWN = {name: path.read_text("utf-8") for name, path in FILES.items() if not name.startswith("vendor/")}
SCRIPTS = {name: text for name, text in OWN.items() if name.endswith(".js")}


class Elements(HTMLParser):
    """The start tags of a document, with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


INDEX = Elements(OWN["index.html"]).found


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FILES.values()) < LIMIT


def test_every_file_is_served_without_a_key() -> None:
    paths = {route.path for route in ROUTES if route.open and route.method == "GET"}
    assert paths == {"/", *(f"/page/{name}" for name in FILES)}


def test_vendored_files_have_their_licences() -> None:
    code = {name.removesuffix(".js").split(".")[0] for name in FILES if re.fullmatch(r"vendor/.*\.js", name)}
    assert code == {"vendor/marked", "vendor/purify"}
    assert all(FILES[f"{name}.LICENSE.txt"].stat().st_size > 1000 for name in code)


def test_the_policy_allows_this_server_alone() -> None:
    allowed = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert allowed.pop("default-src") == "'none'"
    assert allowed.pop("trusted-types") == "dompurify"
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
def test_nothing_comes_from_elsewhere(name: str) -> None:
    addresses = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`)]*", OWN[name])
    assert [a for a in addresses if a != "http://www.w3.org/2000/svg"] == []
    assert "@import" not in OWN[name]
    assert "url(" not in OWN[name]


def test_imports_lead_to_files() -> None:
    loaded = {attributes["src"] for tag, attributes in INDEX if tag == "script"}
    loaded |= {attributes["href"] for tag, attributes in INDEX if tag == "link"}
    assert loaded <= {f"page/{name}" for name in FILES}, "a proxy may offer the page at another path"
    imports = {
        target
        for text in SCRIPTS.values()
        for target in re.findall(r"""(?m)^import .*?["'](.*?)["'];""", text)
    }
    assert imports
    assert imports <= {f"./{name}" for name in FILES}


def test_elements_that_scripts_use_are_there() -> None:
    ids = {attributes["id"] for _, attributes in INDEX if "id" in attributes}
    assert len(ids) == sum("id" in attributes for _, attributes in INDEX)
    used = {name for text in SCRIPTS.values() for name in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert used
    assert used <= ids


def test_each_source_has_a_colour_and_a_line_of_its_own() -> None:
    style = OWN["style.css"]
    rules = re.findall(r'(?m)^\.tint \[data-source="(\w+)"\], .*\{(.*)\}', style)
    found = dict(rules)
    assert set(found) == {"target", "model", "head", "copy", "memory", "grammar"}
    drafted = {name: rule for name, rule in found.items() if name != "target"}
    for what in (r"--on: (\S+);", r"text-decoration-style: (\w+)"):
        assert len({re.findall(what, rule)[0] for rule in drafted.values()}) == len(drafted)
