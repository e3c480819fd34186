"""The training text of the pydoc pair, from the standard library of the running interpreter.

A small model learns little from varied text, so the corpus is narrow and repetitive: ChatML dialogues about
well-known modules, each document followed by <|endoftext|>.

    explain   what a module, function, class or method does (recall)
    source    the source of a short function (recall)
    edit      rename a variable in given code (copying)
    json      the signature of given code, or a record in plain words, as JSON (copying into a structure)
    repeat    given words or code, unchanged (small models learn to copy from this, and then to edit)
    free      raw source

Knows nothing about tokens.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import random
import re
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (ENDOFTEXT, IM_START, IM_END)  # their token ids are 0, 1, 2


def split_words(text: str) -> list[str]:
    return text.split()


MODULES = split_words("""
    builtins os os.path shutil pathlib sys re json csv io math random statistics datetime time
    calendar collections itertools functools operator string textwrap argparse logging subprocess
    threading queue asyncio concurrent.futures socket urllib.parse urllib.request html base64
    hashlib hmac secrets struct pickle copy sqlite3 zipfile tarfile gzip tempfile glob fnmatch
    contextlib dataclasses enum types abc inspect traceback heapq bisect array decimal fractions
    uuid platform configparser unicodedata difflib pprint shlex signal select ssl weakref ast dis
    timeit cProfile tracemalloc zlib bz2 lzma ipaddress mimetypes getpass locale gettext codecs
    webbrowser xml.etree.ElementTree
""")
METHODS_OF = split_words("""
    str list dict set bytes int float tuple pathlib.Path datetime.datetime datetime.date
    datetime.timedelta collections.Counter collections.deque collections.OrderedDict re.Pattern
    re.Match threading.Thread threading.Lock queue.Queue io.StringIO argparse.ArgumentParser
    logging.Logger zipfile.ZipFile subprocess.Popen socket.socket sqlite3.Connection asyncio.Queue
    random.Random decimal.Decimal fractions.Fraction
""")
FOREIGN_NAMES = split_words("""
    asyncio builtins os os.path collections itertools math
""")  # modules whose content is mostly defined elsewhere
SKIPPED = split_words("""
    site-packages __pycache__ lib2to3 encodings turtledemo test tests idlelib idle_test
""")

EXPLAIN = (
    "What does {q} do?",
    "What does `{q}` do?",
    "Explain {q}.",
    "Describe {q}.",
    "What is {q} for?",
    "How does {q} work?",
    "Tell me about {q}.",
    "{q}",
    "Help me with {q}.",
    "what does {q} do",
    "In Python, what does {q} do?",
    "Give me a short description of {q}.",
)
SOURCE = (
    "Show the source of {q}.",
    "Write the Python code of {q}.",
    "Implement {q} in Python.",
    "Print the code of {q}.",
)
RENAME = (
    "Rename `{a}` to `{b}` in this code:\n{src}",
    "In the code below, rename the variable {a} to {b}.\n{src}",
    "{src}\nRename {a} to {b}.",
)
SIGNATURE = (
    "Give the signature of this function as JSON:\n{src}",
    "Describe the parameters of this function as JSON.\n{src}",
)
REPEAT = ("Repeat this:\n{t}", "Say it again:\n{t}", "{t}\nRepeat.")
RECORD = ("Turn this into JSON: {t}", "Extract the fields as JSON.\n{t}", "As JSON, please: {t}")
GREETING = "Hello! Ask me about the Python standard library."
SMALL_TALK = (
    ("Hello", GREETING),
    ("Hi", GREETING),
    (
        "Who are you?",
        "I am pydoc, a very small language model. I know a little about the Python standard library.",
    ),
    (
        "What can you do?",
        "I can say what functions of the Python standard library do, rename variables in code, "
        "and turn text into JSON.",
    ),
    ("Thanks", "You are welcome."),
    ("Thank you!", "You are welcome."),
)
NAMES = split_words("""
    value item name path data result key node size text index count buf total entry line obj func
    left right head tail payload source target width limit offset flag token chunk record
""")
FIRST_NAMES = split_words("""
    Ada Alan Grace Linus Guido Barbara Ken Dennis Margaret Donald Edsger Tim Radia Frances Jean
    Katherine John Anita Hedy Niklaus
""")
LAST_NAMES = split_words("""
    Lovelace Turing Hopper Torvalds Rossum Liskov Thompson Ritchie Hamilton Knuth Dijkstra Lee
    Perlman Allen Bartik Johnson Backus Borg Lamarr Wirth
""")
CITIES = split_words("""
    London Paris Berlin Madrid Rome Vienna Oslo Lisbon Dublin Prague Warsaw Athens Helsinki Zurich
    Tokyo Sydney Toronto Boston Chicago Seattle
""")
JOBS = split_words("""
    engineer teacher doctor baker pilot writer nurse painter chemist farmer lawyer singer cook
    driver judge tailor
""")

N_SOURCES = 400  # functions whose source is to be memorised
N_WORD_LISTS, N_RECORDS = 16_000, 12_000
MAX_DOC, MAX_SOURCE, MAX_RECALLED = 340, 620, 420  # characters


class Function(NamedTuple):
    """A function short enough to quote: its dotted name, its syntax tree and its dedented source."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    source: str


def chat(user: str, assistant: str) -> str:
    """A message and its answer in ChatML."""
    return f"{IM_START}user\n{user}{IM_END}\n{IM_START}assistant\n{assistant}{IM_END}\n"


def block(source: str) -> str:
    return f"```python\n{source}\n```"


def first_paragraphs(doc: str, limit: int = MAX_DOC) -> str:
    """As many paragraphs as fit, at least the first, cut at a full stop if necessary; ASCII only."""
    doc = re.sub(r"[^\x00-\x7f]", "", doc).strip()
    out = ""
    for paragraph in re.split(r"\n\s*\n", doc):
        if out and len(out) + len(paragraph) > limit:
            break
        out += ("\n\n" if out else "") + paragraph
    return out if len(out) <= limit else out[:limit].rsplit(". ", 1)[0].rstrip(".") + "."


def describe(name: str, obj: object) -> str | None:
    """Signature and docstring; None if the docstring is too short."""
    doc = inspect.getdoc(obj)
    if not doc or len(doc) < 12:
        return None
    try:
        signature = str(inspect.signature(obj))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        signature = ""
    readable = signature and len(signature) < 90 and "<" not in signature and " at 0x" not in signature
    return (f"{name}{signature}\n\n" if readable else "") + first_paragraphs(doc)


def is_defined_in(obj: object, module: str) -> bool:
    """Whether the module defines the object rather than imports it."""
    home = getattr(obj, "__module__", module) or module
    if module == "asyncio":
        return home.startswith("asyncio")
    return module in FOREIGN_NAMES or home.split(".")[0].lstrip("_") in module or module.split(".")[0] in home


def members(module: ModuleType, name: str) -> Iterator[tuple[str, object]]:
    """The public functions and classes of a module with their dotted names, without exceptions."""
    for n in sorted(getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]):
        obj = getattr(module, n, None)
        is_error = inspect.isclass(obj) and issubclass(obj, BaseException)
        if (inspect.isroutine(obj) or inspect.isclass(obj)) and not is_error and is_defined_in(obj, name):
            yield n if name == "builtins" else f"{name}.{n}", obj


def descriptions() -> dict[str, str]:
    """The description of every module, function, class and method, by its dotted name."""
    out: dict[str, str] = {}

    def add(name: str, obj: object) -> None:
        if name not in out and (text := describe(name, obj)):
            out[name] = text

    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:  # not built into this interpreter
            continue
        if name != "builtins":
            add(name, module)
        for member, obj in members(module, name):
            add(member, obj)
    for name in METHODS_OF:
        home, _, class_name = name.rpartition(".")
        cls = getattr(importlib.import_module(home or "builtins"), class_name)
        for n in sorted(set(dir(cls)) - set(dir(object))):
            if not n.startswith("_"):
                add(f"{name}.{n}", getattr(cls, n))
    return out


def stdlib_files() -> Iterator[tuple[Path, str]]:
    """Every module's path under the standard library, and its text."""
    root = Path(sysconfig.get_path("stdlib"))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED)
        for file in sorted(files):
            if file.endswith(".py"):
                path = Path(folder) / file
                try:
                    yield path.relative_to(root), path.read_text("utf-8")
                except UnicodeDecodeError:
                    continue


def functions(path: Path, text: str) -> Iterator[Function]:
    """The functions and methods of a file that are short enough to quote."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    lines = text.splitlines()

    def visit(body: Sequence[ast.stmt], prefix: str) -> Iterator[Function]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                source = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if 80 < len(source) < MAX_SOURCE and source.isascii():
                    yield Function(f"{prefix}.{node.name}", node, source)
            elif isinstance(node, ast.ClassDef):
                yield from visit(node.body, f"{prefix}.{node.name}")

    yield from visit(tree.body, ".".join(path.with_suffix("").parts).removesuffix(".__init__"))


def signature_json(function: Function) -> str:
    a = function.node.args
    signature = {
        "name": function.node.name,
        "parameters": [x.arg for x in a.posonlyargs + a.args],
        "keyword_only": [x.arg for x in a.kwonlyargs],
        "varargs": a.vararg.arg if a.vararg else None,
        "kwargs": a.kwarg.arg if a.kwarg else None,
    }
    return json.dumps(signature, indent=2)


def record(rng: random.Random) -> tuple[str, str]:
    """An invented person in words, and the same as JSON."""
    person = {
        "name": f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}",
        "age": rng.randrange(18, 90),
        "city": rng.choice(CITIES),
        "job": rng.choice(JOBS),
        "id": rng.randrange(1000, 99999),
        "active": rng.random() < 0.5,
    }
    chosen = {k: person[k] for k in rng.sample(list(person), rng.randrange(2, 6))}
    words = ", ".join(f"{k} {str(v).lower() if isinstance(v, bool) else v}" for k, v in chosen.items())
    return words, json.dumps(chosen, indent=2)


def rename(rng: random.Random, function: Function) -> str | None:
    """A dialogue that renames one parameter; None for a function without one."""
    old_names = {x.arg for x in function.node.args.args if len(x.arg) > 1 and x.arg not in ("self", "cls")}
    if not old_names:
        return None
    old, new = rng.choice(sorted(old_names)), rng.choice(NAMES)
    changed = re.sub(rf"\b{re.escape(old)}\b", new, function.source)
    if changed == function.source:
        return None
    return chat(rng.choice(RENAME).format(a=old, b=new, src=block(function.source)), block(changed))


def recall_documents(rng: random.Random, found: Sequence[Function]) -> Iterator[str]:
    """Documents to memorise: descriptions, small talk, some sources."""
    for name, text in descriptions().items():
        yield from (chat(t.format(q=name), text) for t in EXPLAIN)
    for user, assistant in SMALL_TALK:
        yield from [chat(user, assistant)] * len(EXPLAIN)
    known = {m.split(".")[0] for m in MODULES}
    short = [
        f
        for f in found
        if f.name.split(".")[0] in known and len(f.source) < MAX_RECALLED and "._" not in f.name
    ]
    rng.shuffle(short)
    for f in short[:N_SOURCES]:
        yield from (chat(t.format(q=f.name), block(f.source)) for t in SOURCE)


def copying_documents(rng: random.Random, found: Sequence[Function]) -> Iterator[str]:
    """Documents to copy from the prompt, with or without changes; and half of the sources, unchanged."""
    for f in found:
        yield from (d for d in (rename(rng, f) for _ in range(3)) if d)
        yield chat(rng.choice(SIGNATURE).format(src=block(f.source)), signature_json(f))
        yield chat(rng.choice(REPEAT).format(t=block(f.source)), block(f.source))
        if rng.random() < 0.5:
            yield f.source + "\n"
    words = sorted({w for f in found for w in re.findall(r"[A-Za-z_]{2,}", f.source)})
    for _ in range(N_WORD_LISTS):
        text = " ".join(rng.choices(words, k=rng.randrange(8, 70)))
        yield chat(rng.choice(REPEAT).format(t=text), text)
    for _ in range(N_RECORDS):
        text, as_json = record(rng)
        yield chat(rng.choice(RECORD).format(t=text), as_json)


def documents(seed: int = 7) -> list[str]:
    """All documents, shuffled."""
    rng = random.Random(seed)
    found = [f for path, text in stdlib_files() for f in functions(path, text)]
    out = [*recall_documents(rng, found), *copying_documents(rng, found)]
    rng.shuffle(out)
    return out
