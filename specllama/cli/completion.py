"""Shell completion of option values. Runs whenever the user presses the tab key: it is quick, imports nothing
heavy, and skips files that it cannot read.

Typer completes commands and flags; where this module finds nothing, the shell completes file names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator

_MAX_ENTRIES = 20_000  # of one directory, or of the hub's cache
_DEPTH = 8
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_ZSH_BREAKS = re.compile(r"['\"\\]")
_BASH_SPECIAL = re.compile(r"[^\w@%+=:,./~-]")


def completer(completes: tuple[str, ...]) -> Callable[[str], list[str]]:
    """The function that Typer calls to complete the values of an option. completes: see Option."""
    from specllama.option import CHATS, DOWNLOADED, GGUF, KEPT, LIST, RUNNING

    sources = {GGUF: model_names, RUNNING: _servers, KEPT: _prompts, CHATS: _chats, DOWNLOADED: _downloaded}

    def complete(incomplete: str) -> list[str]:
        words = [word for word in completes if word not in (*sources, LIST)]
        if LIST in completes:
            return _next_in_list(words, incomplete)
        matches = [word for word in words if word.startswith(incomplete)]
        for kind in (kind for kind in sources if kind in completes):
            names = [name for name in sources[kind](incomplete) if name.startswith(incomplete)]
            matches += _for_shell(incomplete, names)
        return matches

    return complete


def model_names(incomplete: str) -> list[str]:
    """Values that name a model: paths of GGUF files and of directories on the way to them, also in the hub's
    cache, names of models.toml, and downloaded models.
    """
    paths = list(_below(incomplete))
    for _ in range(_DEPTH):  # the shell adds a blank to a single match; a directory must get none
        if len(paths) != 1 or not paths[0].endswith("/"):
            break
        paths = list(_below(paths[0])) or paths
    return [*paths, *_known(incomplete), *_in_hub_cache(incomplete)]


def _prompts(_incomplete: str) -> Iterator[str]:
    """Ids of prompts on disk, and the models that they are for."""
    from specllama.models.demo import called
    from specllama.prefix_disk.directory import StateDirectory, default_directory, listed

    with contextlib.suppress(OSError):
        for state in listed(StateDirectory(default_directory())):
            yield from filter(None, (state.id, called(state.model)))


def _chats(_incomplete: str) -> Iterator[str]:
    """Names of saved conversations, the newest first."""
    from specllama.cli.chat.library import ChatLibrary
    from specllama.errors import ResourceError

    with contextlib.suppress(ResourceError):
        yield from (name for name in ChatLibrary().names() if name.isprintable())


def _servers(_incomplete: str) -> Iterator[str]:
    """Addresses of the servers that run, and their ports."""
    from specllama.server.running import running

    for server in running():
        yield from (server.url, server.url.rpartition(":")[2])


def _for_shell(incomplete: str, words: list[str]) -> list[str]:
    unique = list(dict.fromkeys(words))
    shell = os.environ.get("_SPECLLAMA_COMPLETE", "").rpartition("_")[2]
    if shell == "zsh" and (incomplete.startswith("~") or _ZSH_BREAKS.search("".join(unique))):
        return []  # Typer's script for zsh would change these words; zsh then offers files by itself
    return [_for_bash(word) for word in unique] if shell == "bash" else unique


def _known(incomplete: str) -> Iterator[str]:
    """Names of models.toml; names of downloaded models too, once something is typed."""
    from specllama.errors import ConfigError
    from specllama.models import manifest

    with contextlib.suppress(ConfigError):
        yield from (name for name in manifest.load().names() if name.startswith(incomplete))
    if incomplete:
        yield from (name for name in _downloaded(incomplete) if name.startswith(incomplete))


def _downloaded(_incomplete: str) -> Iterator[str]:
    """The name of each model in the hub's cache."""
    from specllama.models.hub.env import hub_cache

    root = hub_cache(os.environ)
    if not root.is_dir():
        return
    from specllama.models.hub.cache import RepoCache, repositories

    for repo in repositories(root)[:_MAX_ENTRIES]:
        yield from (one.name for one in RepoCache(root, repo).models())


def _next_in_list(words: list[str], incomplete: str) -> list[str]:
    """The list with one more word; "none" can only be the first."""
    before, comma, start = incomplete.rpartition(",")
    used = before.split(",")
    fitting = [w for w in words if w.startswith(start) and w not in used]
    return [before + comma + w for w in fitting if w != "none" or not comma]


def _below(incomplete: str) -> Iterator[str]:
    """Directories, with a slash, and GGUF files whose path starts so; of a split file the first part only."""
    start = os.path.basename(incomplete)
    folder = incomplete[: len(incomplete) - len(start)]
    for name, is_directory in _entries(os.path.expanduser(folder) or "."):
        if name.startswith(start) and (start or not name.startswith(".")):
            if is_directory:
                yield f"{folder}{name}/"
            elif _is_model(name):
                yield folder + name


def _is_model(name: str) -> bool:
    return name.lower().endswith(".gguf") and not _LATER_PART.search(name)


def _entries(folder: str) -> list[tuple[str, bool]]:
    """Names in a directory, and whether they are directories themselves."""
    listed = []
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False):
                if entry.name.isprintable():
                    listed.append((entry.name, entry.is_dir()))
    except OSError:
        pass
    return sorted(listed)


def _in_hub_cache(incomplete: str) -> Iterator[str]:
    """Full paths of downloaded GGUF files, if nothing or a path in the hub's cache has been typed."""
    from specllama.models.hub.env import hub_cache

    root = str(hub_cache(os.environ))
    if incomplete and not os.path.expanduser(incomplete).startswith(root):
        return
    n_seen, home = 0, os.path.expanduser("~")
    for folder, directories, names in os.walk(root):
        n_seen += len(directories) + len(names)
        if n_seen > _MAX_ENTRIES:
            return
        directories[:] = sorted(d for d in directories if d not in ("blobs", "refs", ".locks", ".no_exist"))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if incomplete.startswith("~"):
                path = "~" + path.removeprefix(home)
            if path.startswith(incomplete) and _is_model(name):
                yield path


class _Word(str):
    """An escaped word, which need not start with the typed text: Typer would drop it."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return True


def _for_bash(word: str) -> str:
    """The word escaped for bash, which inserts words unchanged; other shells escape them."""
    if not _BASH_SPECIAL.search(word):
        return word
    try:
        typed = os.environ["COMP_WORDS"].split("\n")[int(os.environ["COMP_CWORD"])]
    except (KeyError, ValueError, IndexError):
        typed = ""
    return _Word(word if typed[:1] in ("'", '"') else _BASH_SPECIAL.sub(r"\\\g<0>", word))
