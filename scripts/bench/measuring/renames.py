"""Renames of a variable in functions of this Python's standard library: the code before and after.

A local variable or parameter gets another name everywhere in its function. The functions depend on the
version of Python, the choice among them on the seed.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import random
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LINES = range(20, 81)  # of a function
MAX_CHARACTERS = 3500
MIN_USES = 4  # of the name
PER_FILE = 2
WORDS = (
    "amount", "batch", "bundle", "carrier", "cursor", "digest", "entry", "factor", "fragment", "holder",
    "label", "marker", "member", "origin", "outcome", "parcel", "payload", "portion", "remainder", "sample",
    "segment", "subject", "symbol", "thing", "token_text", "unit", "vector", "weight",
)  # fmt: skip
_SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "pydoc_data"}
_BY_NAME = {"locals", "vars", "globals", "eval", "exec"}  # functions that take names as strings


@dataclass(frozen=True)
class Rename:
    """The code of a function before and after `old` becomes `new`. where: file, line and function."""

    where: str
    old: str
    new: str
    code: str
    renamed: str

    @property
    def instruction(self) -> str:
        return f"Rename `{self.old}` to `{self.new}` in this code:\n```python\n{self.code}\n```"

    @property
    def answer(self) -> str:
        return f"```python\n{self.renamed}\n```"


def renames(n: int, seed: int, library: Path | None = None) -> list[Rename]:
    """`n` renames, or fewer if there are no more. library: the directory of sources, None for the standard
    library.
    """
    root, rng = library or Path(sysconfig.get_paths()["stdlib"]), random.Random(seed)
    files = [p for p in sorted(root.rglob("*.py")) if not _SKIPPED & set(p.relative_to(root).parts)]
    rng.shuffle(files)
    found: list[Rename] = []
    for path in files:
        of_file = list(_of_file(path, path.relative_to(root), rng))
        found += rng.sample(of_file, min(PER_FILE, len(of_file)))
        if len(found) >= n:
            break
    return found[:n]


def renamed(code: str, old: str, new: str) -> str | None:
    """The code of a function with the variable renamed; None if `old` also names something else there: an
    attribute, a keyword, a part of an f-string.
    """
    tree = ast.parse(code)
    if any(old in _other_names(node) for node in ast.walk(tree)):
        return None
    places = []
    for node in ast.walk(tree):
        if (isinstance(node, ast.Name) and node.id == old) or (isinstance(node, ast.arg) and node.arg == old):
            places.append((node.lineno, node.col_offset))
    lines = code.split("\n")
    for line, column in sorted(places, reverse=True):
        text = lines[line - 1]
        if text[column : column + len(old)] != old:  # in an f-string, where positions are not exact
            return None
        lines[line - 1] = text[:column] + new + text[column + len(old) :]
    found = "\n".join(lines)
    before, after = ast.dump(tree), ast.dump(ast.parse(found))
    return found if before.replace(repr(old), repr(new)) == after else None


def _of_file(path: Path, name: Path, rng: random.Random) -> Iterator[Rename]:
    """A rename of each function of the file that is long enough and has a name to change."""
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return
    lines = source.split("\n")  # as ast counts them
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        code = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if code.count("\n") + 1 not in LINES or len(code) > MAX_CHARACTERS or not code.isascii():
            continue
        try:
            function = ast.parse(code)
        except SyntaxError:  # a multi-line string that starts at the margin
            continue
        known = {n for part in ast.walk(function) for n in (_name(part), *_other_names(part)) if n}
        words = [word for word in WORDS if word not in known]
        candidates = _candidates(function)
        if not candidates or not words or known & _BY_NAME:
            continue
        old, new = rng.choice(candidates), rng.choice(words)
        if (text := renamed(code, old, new)) is not None:
            yield Rename(f"{name}:{node.lineno} {node.name}", old, new, code, text)


def _candidates(function: ast.Module) -> list[str]:
    """Names of parameters and variables that are used often, sorted."""
    nodes = list(ast.walk(function))
    uses = Counter(name for node in nodes if (name := _name(node)))
    bound = {n.arg for n in nodes if isinstance(n, ast.arg)}
    bound |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    others = {name for node in nodes for name in _other_names(node)}
    reserved = {"self", "cls", "_", *keyword.softkwlist, *dir(builtins)}
    return sorted(name for name in bound - others - reserved if uses[name] >= MIN_USES and len(name) > 1)


def _name(node: ast.AST) -> str:
    """The variable that the node names."""
    return node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""


def _other_names(node: ast.AST) -> list[str]:
    """Names in the node other than variables and parameters: of keywords, imports, globals, patterns ..."""
    if isinstance(node, ast.keyword):
        return [node.arg or ""]
    if isinstance(node, ast.alias):
        return [node.name.split(".")[0], node.asname or ""]
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return list(node.names)
    if isinstance(node, ast.JoinedStr):
        return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    if isinstance(node, ast.MatchMapping):
        return [node.rest or ""]
    if isinstance(node, (ast.ExceptHandler, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name or ""]
    return [node.name or ""] if isinstance(node, (ast.MatchAs, ast.MatchStar)) else []
