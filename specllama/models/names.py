"""The syntax of model names: a repository of the hub with a tag and a revision, or a path.

Checks the syntax only, without disk or network. Names that pass are safe as part of a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from specllama.errors import UsageError

DEMO, PYDOC = BUILT_IN = ("demo", "pydoc")  # need no hub: the demo model, the embedded pair
MAX_NAME = 4096  # characters of a name or path that the user types
MAX_FILE = 1024  # characters of a file's path in a repository
DEFAULT_REVISION = "main"

_PART = r"[A-Za-z0-9_](?:[\w.-]{0,94}[A-Za-z0-9_])?"
_REPO = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][\w.+-]*(?:/[A-Za-z0-9_][\w.+-]*)*", re.ASCII)
_TAG = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}", re.ASCII)
_SHAPE = re.compile(r"([^/@:]+/[^/@:]+?)(?:@([^:]*))?(?::(.*))?", re.DOTALL)
_PAGES = ("blob", "resolve", "raw", "tree")  # in the addresses of the hub's pages and files
_HOSTS = ("hf.co", "huggingface.co", "www.huggingface.co")
_ANY_TAG = ":latest"  # Ollama's clients add it to names without a tag
_FORM = "hf:user/repo, user/repo:Q4_K_M, user/repo:file.gguf or user/repo@revision"


@dataclass(frozen=True, slots=True)
class RepoName:
    """A model in a repository of the hub. tag: a quantisation, the path of a .gguf file, or "".

    Raises UsageError at construction for what cannot be a repository, tag or revision.
    """

    repo: str
    tag: str = ""
    revision: str = DEFAULT_REVISION

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo) or "--" in self.repo or ".." in self.repo:
            raise UsageError(f"{shown(self.repo)} cannot be a repository of the hub", f"write {_FORM}")
        if len(self.revision) > 200 or not _REVISION.fullmatch(self.revision) or ".." in self.revision:
            raise UsageError(f"{shown(self.revision)} cannot be a revision", f"write {_FORM}")
        if not self.tag:
            return
        if self.is_file:
            check_file(self.tag)
        elif not _TAG.fullmatch(self.tag):
            raise UsageError(f"{shown(self.tag)} cannot be a quantisation or a file", f"write {_FORM}")

    @property
    def is_file(self) -> bool:
        return self.tag.lower().endswith(".gguf")

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{revision}" + (f":{self.tag}" if self.tag else "")


def check_text(name: str, argument: str) -> None:
    """Raises UsageError for a text that can be neither path nor name. argument: the option it belongs to."""
    if "\0" in name or len(name) > MAX_NAME:
        raise UsageError(f"{argument}: not a usable path or name")
    if not name:
        message = f"{argument} needs the path of a GGUF file, or a model's name"
        raise UsageError(message, "see specllama models")


def parse_repo(text: str, host: str = "") -> RepoName | None:
    """The repository that a text names, with or without "hf:", as the address of its page or of one of its
    files, or as user/repo/file.gguf; None if the text has another form. host: of a mirror of the hub.

    Raises UsageError for a text of this form, or after "hf:", that cannot be a repository.
    """
    plain = text.removeprefix("hf:").removeprefix("//")
    if (address := _path_of_address(plain, host)) is not None:
        return _of_address(text, address)
    explicit = text.startswith("hf:")
    folders = plain.split("/")
    if (
        len(folders) > 2
        and plain.lower().endswith(".gguf")
        and ":" not in plain
        and folders[0][:1] not in "./~\\"
    ):
        return RepoName("/".join(folders[:2]), "/".join(folders[2:]))
    match = _SHAPE.fullmatch(plain)
    if match is None:
        if explicit:
            raise UsageError(f"{shown(text)} cannot be a repository of the hub", f"write {_FORM}")
        return None
    repo, revision, tag = match.groups()
    looks_like_a_path = repo[0] in "./~\\" or repo.lower().endswith(".gguf")
    if not explicit and (
        looks_like_a_path or (tag is None and revision is None and not _REPO.fullmatch(repo))
    ):
        return None
    if revision == "" or tag == "":
        raise UsageError(f"{shown(text)}: something is missing at its end", f"write {_FORM}")
    return RepoName(repo, tag or "", revision or DEFAULT_REVISION)


def _path_of_address(text: str, host: str) -> str | None:
    """The path of an address of the hub, with or without https://; None for any other text."""
    scheme, separator, rest = text.rpartition("://")
    if scheme.lower() not in ("", "http", "https") or (separator and not scheme):
        return None
    name, slash, path = rest.partition("/")
    known = (*_HOSTS, host) if host else _HOSTS
    if not slash or name.lower() not in known:
        return None
    return path.partition("?")[0].partition("#")[0].strip("/")


def _of_address(text: str, path: str) -> RepoName:
    user, _, rest = path.partition("/")
    name, _, rest = rest.partition("/")
    if not rest:
        parsed = parse_repo(f"hf:{user}/{name}")
        assert parsed is not None
        return parsed
    page, _, rest = rest.partition("/")
    revision, _, file = unquote(rest).partition("/")
    if page not in _PAGES or not revision or (file and not file.lower().endswith(".gguf")):
        raise UsageError(f"{shown(text)} is not the address of a model on the hub", f"write {_FORM}")
    return RepoName(f"{user}/{name}", file, revision)


def check_file(path: str) -> None:
    """Raises UsageError for a path that could lead out of its repository's directory."""
    parts = path.split("/")
    odd = any(part in ("", ".", "..") or len(part.encode("utf-8", "replace")) > 255 for part in parts)
    if odd or len(path) > MAX_FILE or "\\" in path or ":" in path or not path.isprintable():
        raise UsageError(f"{shown(path)} cannot be a file of a repository")


def name_variants(name: str) -> list[str]:
    """A name that a client asks for, and those that it may stand for: without Ollama's tag, and without the
    ending of the file.
    """
    short = name.removesuffix(_ANY_TAG)
    return [name, short, short.removesuffix(".gguf")]


def shown(text: str) -> str:
    """A text for messages: quoted, without control characters, shortened to 80 characters."""
    return repr(text) if len(text) <= 80 else f"{text[:80]!r}…"
