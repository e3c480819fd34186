"""One word for each thing: those of the glossary in docs/development.md, and no second one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (?P<word>[^|]+) \| (?P<means>[^|]+) \| (?P<other>[^|]+) \|")
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def glossary() -> dict[str, list[str]]:
    """The words, and for each those that are not used for it."""
    text = (ROOT / "docs/development.md").read_text("utf-8")
    table = text.partition("## Words")[2].partition("\n## ")[0]
    rows = [match for line in table.splitlines() if (match := ROW.fullmatch(line))]
    return {row["word"]: re.findall(r"`([\w ]+)`", row["other"]) for row in rows[1:]}


def said(source: str) -> Iterator[str]:
    """Names and docstrings of a module. Keys of stored files and fields of others' protocols are strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            yield ast.get_docstring(node) or ""
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.arg or ""


def words(text: str) -> str:
    """The words of names and sentences, in lower case, each between spaces: `PricedState` has two."""
    return f" {' '.join(PART.findall(text)).lower()} "


def test_the_glossary_has_twenty_words_with_what_they_replace() -> None:
    assert len(glossary()) >= 20
    assert all(others for others in glossary().values())


def test_no_second_word_for_one_of_the_glossary() -> None:
    others = {f" {words(other).strip()} ": word for word, given in glossary().items() for other in given}
    found = []
    for path in sorted((ROOT / "specllama").rglob("*.py")):
        text = "\n".join(words(one) for one in said(path.read_text("utf-8")))
        name = path.relative_to(ROOT)
        found += [f"{name}: {other.strip()} is {others[other]}" for other in others if other in text]
    assert found == []


def test_words_are_found_in_names_and_sentences() -> None:
    source = 'class PricedState:\n    """It is put away."""\n    def f(self, n_accepted): return other.seat\n'
    text = "\n".join(words(one) for one in said(source))
    assert all(f" {one} " in text for one in ("priced", "put away", "n accepted", "seat"))
