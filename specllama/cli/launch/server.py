"""The server for a client: a running one that is found, or one that runs while the client does."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlencode, urlsplit

from specllama.cli.app import run_app
from specllama.cli.launch.client import OF_SERVER, Client, ModelServer
from specllama.cli.options import mapped_errors
from specllama.clock import sleep
from specllama.config import defaults
from specllama.config.store import cache_dir
from specllama.errors import AccessError, NetworkError, NotFoundError, ResourceError, SpecllamaError
from specllama.json_types import JsonObject
from specllama.option import OptionValues
from specllama.processor_time import exits
from specllama.python_command import module_command
from specllama.regular_file import open_regular

_CONNECT_SECONDS, _POLL_SECONDS = 10.0, 0.05
_END_SECONDS = 5.0  # of work
_MAX_BYTES = 4 << 20  # of an answer
_KEPT_LOGS = 10
_SERVING = re.compile(r"^serving .* at (http://\S+)/v1, ", re.M)


def find(url: str, key: str, model: str) -> ModelServer | None:
    """The specllama at a URL without /v1, with its model of this name; "" for the one in memory, or the first
    that is listed. None if nothing answers there, or another program. The name of a file means that file, on
    a server on this machine.

    Raises AccessError for a wrong key, NotFoundError for another name, SpecllamaError for a problem there.
    """
    status, health = _ask(url, "GET", "/health", key)
    if status == 503 and isinstance(health.get("error"), dict):
        raise NetworkError(f"the server at {url} has a problem: {health['error'].get('message')}")
    if status != 200 or health.get("status") != "ok":
        return None
    status, listed = _ask(url, "GET", "/v1/models", key)
    if status == 401:
        raise AccessError(
            f"the server at {url} needs a key" + (", another than this one" if key else ""),
            "SPECLLAMA_API_KEY or --api-key-file gives it",
        )
    entries = listed.get("data")
    if status != 200 or not isinstance(entries, list) or not entries:
        return None
    if not all(isinstance(e, dict) and e.get("owned_by") == "specllama" and "id" in e for e in entries):
        return None
    entry = _chosen(url, key, entries, model)
    meta = entry.get("meta") or {}
    n_ctx = meta.get("n_ctx")
    if not n_ctx:  # what a model that is not in memory will have
        about = _ask(url, "POST", "/api/show", key, {"model": entry["id"]})[1].get("model_info") or {}
        lengths = [v for k, v in about.items() if k.endswith(".context_length") and isinstance(v, int)]
        n_ctx = next(iter(lengths), 0)
    vision = "image" in ((entry.get("architecture") or {}).get("input_modalities") or ())
    return ModelServer(url, entry["id"], key, n_ctx, meta.get("n_ctx_train") or 0, vision)


def _chosen(url: str, key: str, entries: Sequence[Mapping[str, Any]], model: str) -> Mapping[str, Any]:
    loaded = [e for e in entries if (e.get("status") or {}).get("value") == "loaded"]
    if not model:
        return next(iter(loaded), entries[0])
    path = os.path.expanduser(model)
    if os.path.isfile(path) and defaults.is_loopback(urlsplit(url).hostname or ""):
        asked = ((e, _ask(url, "GET", f"/props?{urlencode({'model': e['id']})}", key)[1]) for e in loaded)
        served = ((e, props.get("model_path")) for e, props in asked)
        same = (
            e for e, at in served if isinstance(at, str) and os.path.realpath(at) == os.path.realpath(path)
        )
    else:
        same = (e for e in entries if e["id"] in (model, Path(model).name.removesuffix(".gguf")))
    if (entry := next(same, None)) is not None:
        return entry
    listed = ", ".join(str(entry["id"]) for entry in entries[:10])
    raise NotFoundError(f"the server at {url} has no model {model!r}", f"it lists: {listed}")


def _ask(url: str, method: str, path: str, key: str, body: Any = None) -> tuple[int, JsonObject]:
    """The status and the JSON object of an answer; 0 if there is none."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    link = kind(parts.netloc, timeout=_CONNECT_SECONDS)
    try:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        data = None if body is None else json.dumps(body).encode()
        link.request(method, parts.path.rstrip("/") + path, data, headers)
        answer = link.getresponse()
        parsed = json.loads(answer.read(_MAX_BYTES))
        return answer.status, parsed if isinstance(parsed, dict) else {}
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return 0, {}
    finally:
        link.close()


def free_port(host: str, port: int) -> int:
    """The port, or 0 for any if it is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return 0
    return port


class OwnServer(contextlib.AbstractContextManager["OwnServer"]):
    """`specllama serve` in the background; a context manager that ends it.

    arguments: its flags. environ: its environment. log: gets what it prints. It is the leader of a session of
    its own, so that a terminal's Ctrl-C reaches the client alone, and ends with this process, however that
    ends. Raises ResourceError for a log that cannot be written.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        try:
            with log.open("xb") as output:
                self._process = subprocess.Popen(
                    module_command("specllama.cli.launch.server", "serve", *arguments),
                    stdin=subprocess.PIPE,  # see `_wait`
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env=dict(environ),
                )
        except OSError as error:
            raise ResourceError(f"the server cannot be started: {error}") from None

    def __exit__(self, *_: object) -> None:
        """End it; its client has exited, so requests need not finish."""
        assert self._process.stdin is not None
        with self._process.stdin:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(number)
                if exits(self._process, _END_SECONDS):
                    return

    def url(self, say: Callable[[str], None]) -> str | None:
        """Wait until it serves, and return its URL without /v1; None if it has ended. say: gets its lines."""
        with io.TextIOWrapper(open_regular(self._log), "utf-8", "replace") as text:
            line = ""
            while True:
                ended = self._process.poll() is not None
                while part := text.readline():
                    line += part
                    if not line.endswith("\n"):
                        break
                    say(line.rstrip("\n"))
                    if match := _SERVING.match(line):
                        return match[1]
                    line = ""
                if ended:
                    return None
                sleep(_POLL_SECONDS)

    @property
    def exit_code(self) -> int:
        code = self._process.wait()
        return code if code > 0 else SpecllamaError.exit_code


def new_log() -> Path:
    """A path for a server's log in the cache directory; the oldest logs are removed. Raises ResourceError."""
    folder = cache_dir() / "launch"
    with mapped_errors(ResourceError, f"{folder} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        logs = sorted(folder.glob("serve-*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[: -_KEPT_LOGS + 1]:
            path.unlink(missing_ok=True)
    return folder / f"serve-{secrets.token_hex(8)}.log"


# `python -m specllama.cli.launch.server serve ...`: the program, which ends with the process that started
# it.
#
# Its stdin is a pipe to which only that process holds the other end: the system closes it when the process
# ends, also when it is killed.


def _wait() -> None:
    """Send SIGTERM to this process when its stdin is closed."""
    while os.read(0, 4096):
        pass
    # To the main thread: it may be in a system call, which the signal then interrupts.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_wait, daemon=True).start()
    sys.exit(run_app(sys.argv[1:]))


KEYS = ("api_key", "api_key_file", "admin_key", "metrics_key")
_SECRETS = ("api_key", "admin_key", "metrics_key")  # which go by variables, not by flags
_DRAIN_SECONDS = 1  # the client has ended before


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """flags: of serve. variables: its secrets. host, port: where it will serve, port 0 for any. model: the
    name that it will show, as far as it is known. n_ctx: 0 for unknown.
    """

    flags: Sequence[str]
    variables: Mapping[str, str] = field(repr=False)
    host: str
    port: int
    model: str
    n_ctx: int


def serve_command(given: Mapping[str, Any], values: Mapping[str, Any], client: Client) -> ServeCommand:
    """The server for a client. given: the command line of `launch`; values: the same with configuration files
    and environment.
    """
    more: OptionValues = {}
    host = values.get("host", defaults.HOST)
    port = values["port"] if "port" in given else free_port(host, values.get("port", defaults.PORT))
    more["port"] = port
    if "n_ctx" not in given and client.n_ctx:
        more["n_ctx"] = max(client.n_ctx, values.get("n_ctx", 0))
    if "drain" not in values:
        more["drain"] = _DRAIN_SECONDS
    flags = [*_flags({**given, **more}), *(["--force"] if given.get("force") else [])]
    named = [*values.get("alias", []), values.get("model", ""), values.get("hf_repo", "")]
    model = next((name for name in named if name and name != "*"), "")
    variables = {
        f"SPECLLAMA_{name.upper()}": ",".join(given[name]) if isinstance(given[name], list) else given[name]
        for name in _SECRETS
        if name in given
    }
    shown = PurePath(model).name.removesuffix(".gguf") or "NAME"
    return ServeCommand(flags, variables, host, port, shown, {**values, **more}.get("n_ctx", 0))


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    for o in OF_SERVER:
        if o.name not in values or o.name in _SECRETS:
            continue
        value = values[o.name]
        if o.kind is bool:
            yield from [o.flags[0]] if value else []
            continue
        for one in value if o.many else [value]:
            yield from (o.flags[0], str(one))
