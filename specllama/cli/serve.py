"""`specllama serve`: the local API."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specllama.cli import console, readout
from specllama.cli.answer import engine_log, log_file
from specllama.cli.options import resolved, sampling
from specllama.cli.progress import Progress, library, prepared
from specllama.client.model_info import LoadInfo
from specllama.clock import exited, wait_until
from specllama.config import build, defaults
from specllama.config.load import LoadSettings
from specllama.config.options import OF_ONE_MODEL, OF_TEXTS
from specllama.config.text_file import read_text
from specllama.errors import ResourceError, UsageError
from specllama.models.resolve import Library
from specllama.server.settings import ServerSettings
from specllama.text.prompt_parts import reasoning_variables
from specllama.text.terminal import printable
from specllama.wording import counted

_MAX_KEY = 4096  # characters


def keys(v: Mapping[str, Any]) -> tuple[str, ...]:
    """The API keys: those of --api-key, separated by commas as in llama-server, and those of --api-key-file,
    one a line. Raises UsageError, NotFoundError.
    """
    given = list(separated_keys(v.get("api_key", [])))
    if "api_key_file" in v:
        lines = read_text(v["api_key_file"], "api_key_file").splitlines()
        in_file = [line.strip() for line in lines if line.strip()]
        if not in_file:
            raise UsageError("--api-key-file holds no key")
        given += map(checked_key, in_file)
    return tuple(given)


def separated_keys(texts: Sequence[str]) -> tuple[str, ...]:
    """The keys in texts with commas between them. Raises UsageError."""
    return tuple(checked_key(key.strip()) for text in texts for key in text.split(","))


def checked_key(key: str) -> str:
    """The key. Raises UsageError for one that cannot be sent."""
    if not (0 < len(key) <= _MAX_KEY and key.isprintable()):
        raise UsageError(f"a key must have 1 to {_MAX_KEY} printable characters")
    return key


def note_keys(given: Mapping[str, Any]) -> None:
    """Say which of the keys that are given as arguments others can read, and what keeps them secret."""
    for name, file in (("api_key", " or --api-key-file"), ("admin_key", ""), ("metrics_key", "")):
        if given.get(name):
            flag, variable = console.as_flag(name, None), f"SPECLLAMA_{name.upper()}{file}"
            console.note(
                f"note: other users of this machine can read {flag} in the list of processes; "
                f"{variable} keeps it secret"
            )


# Fields of ServerSettings, and the options whose values they are.
_SETTINGS = {
    **{name: name for name in ("host", "port", "share_cache", "spm_infill", "queue", "log_prompts")},
    **{name: name for name in ("strict_model", "root_path", "slot_save_path", "verbose", "models_max")},
    "allow_image_urls": "allow_image_urls",
    "open_metrics": "open_metrics",
    "seconds": "timeout",
    "drain_seconds": "drain",
    "client_seconds": "client_timeout",
    "idle_seconds": "idle_unload",
}


def serve(given: Mapping[str, Any]) -> int:
    """Serve until a signal or POST /drain; returns the exit code. Raises SpecllamaError."""
    from specllama.server.listening import host_of, inherited_socket

    values, inherited = resolved(given), inherited_socket()
    if inherited is not None:
        values["host"] = host_of(inherited)
    is_path = str(values.get("host", "")).startswith(defaults.UNIX)
    if is_path and values.get("open"):
        raise UsageError("needs an address, not a unix socket", "leave --host out", option="open")
    settings = server_settings(values)
    note_keys(given)
    if settings.load.pooling is not None and (idle := [name for name in given if name in OF_TEXTS]):
        flags = ", ".join(console.as_flag(name, None) for name in idle)
        console.note(f"note: {flags}: of no effect on an embedding model, which writes no texts")
    if given.get("pooling") and not values.get("embeddings"):
        console.note("note: --pooling: of no effect without --embeddings, the model that makes vectors")
    log = log_file(values)
    from specllama.server.main import serve as run

    progress = Progress(delay=1.0)

    def show(info: LoadInfo, name: str = "") -> None:
        progress.clear()
        console.note(name + readout.start_line(info, structured=True))
        for note in info.notes:
            console.show(note)

    def ready(info: LoadInfo, url: str) -> None:
        show(info)
        name, n_slots, n_ctx = printable(settings.name), settings.load.n_slots, info.n_ctx
        others = "" if settings.others is None else "; other models on this disk are loaded on demand"
        for embedder in settings.embedder_names[:1]:
            others += f"; {printable(embedder)} when vectors are asked for"
        about = f"{counted(n_slots, 'slot')}, a context of {n_ctx} tokens for all{others}"
        if info.embedding is not None:
            about = f"texts of up to {n_ctx} tokens"
        console.note(f"serving {name} at {url if is_path else f'{url}/v1'}, {about}")
        if not is_path:
            console.note(f"the page for a browser is {url}/")
        if values.get("open"):
            threading.Thread(target=_open, args=(defaults.from_here(f"{url}/"),), daemon=True).start()
        with contextlib.suppress(console.ReaderGoneError, ResourceError):  # it serves without a reader, too
            console.data(f"ready {url}\n")

    others = None if settings.others is None else library(models_dir=values.get("models_dir", ""))
    with build.placed(values), log or contextlib.nullcontext():
        number = run(
            settings,
            console.note,
            ready,
            engine_log(log, values.get("verbose", False)),
            progress.loading,
            others,
            lambda name, info: show(info, f"{printable(name)} is in memory, "),
            inherited,
        )
    return 128 + number if number else 0


def server_settings(
    v: Mapping[str, Any], prepare: Callable[[LoadSettings, Mapping[str, Any]], LoadSettings] = prepared
) -> ServerSettings:
    """The settings of a command line. prepare: finds the models. Raises UsageError, NotFoundError."""
    with build.placed(v):
        given = {field: v[name] for field, name in _SETTINGS.items() if v.get(name) is not None}
        if given.get("idle_seconds") == -1:
            given["idle_seconds"] = 0.0
        load = build.load_settings(v, v.get("n_slots", defaults.SERVED_SLOTS), defaults.KEPT_SECONDS)
        embedder = None
        if "embeddings" in v:
            alone = not {"model", "hf_repo"} & set(v)
            embedder = build.embedder_settings(v, alone)
            if alone:
                load, embedder = embedder, None
        admin = separated_keys(v.get("admin_key", []))
        of_any = {"draft_model"} if v.get("draft_model") in ("auto", "none") else set[str]()
        others = None if load.pooling or OF_ONE_MODEL & v.keys() - of_any else load
        if others is not None and prepare is prepared:
            _ = Library(models_dir=v.get("models_dir", "")).own_files  # an error here is not a warning before
        return ServerSettings(
            load=prepare(load, v),
            embedder=None if embedder is None else prepare(embedder, v),
            embedder_called="" if embedder is None else embedder.target.path,
            others=others,
            names=_names(v.get("alias", [])),
            called=tuple(filter(None, [load.target.path])),
            keys=tuple(dict.fromkeys((*keys(v), *admin))),
            admin_keys=admin,
            metrics_key=checked_key(v.get("metrics_key", "").strip()) if "metrics_key" in v else "",
            hosts=tuple(v.get("allowed_host", [])),
            origins=tuple(v.get("allowed_origin", [])),
            sampling=sampling(v),
            variables=reasoning_variables(v.get("reasoning", "auto")),
            **given,
        )


def _names(given: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for text in given for name in text.split(","))
    if not all(name and name.isprintable() and len(name) <= 512 for name in names):
        raise UsageError("--alias needs a name of up to 512 printable characters")
    return names


_BROWSER_SECONDS = 20.0  # for the browser, or what starts it, to take the address
_OPEN = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"


def _open(url: str) -> None:
    """Open a page in the default browser, or say that it cannot be. In a process of its own: a browser in a
    terminal would take this one, and others write to stdout.
    """
    opener = subprocess.Popen(
        [sys.executable, "-P", "-c", _OPEN, url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if wait_until(exited(opener), _BROWSER_SECONDS) and opener.returncode:  # else it runs in the foreground
        console.note(f"no browser could be opened; the page is at {url}")
