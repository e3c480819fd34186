"""`specllama launch`: a client with its settings, for a server that runs or is started for it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specllama.cli import console
from specllama.cli.launch import server
from specllama.cli.launch.client import Client, ClientSettings, ModelServer
from specllama.cli.launch.client import client as client_named
from specllama.cli.launch.server import KEYS, ServeCommand, serve_command
from specllama.cli.options import resolved, write_file
from specllama.cli.serve import keys, note_keys
from specllama.config import defaults
from specllama.errors import ContextLengthError, EngineError, NotFoundError, UsageError, option
from specllama.processor_time import exits
from specllama.regular_file import read_regular
from specllama.text.terminal import printable

_END_SECONDS = 5.0  # of work
_OF_LAUNCH = ("client", "arguments", "print_only", "url", "force", "debug", "verbose")
_OF_ANY_SERVER = (*_OF_LAUNCH, "model", "host", "port", *KEYS)


def launch(given: Mapping[str, Any]) -> int:
    """Run a client; returns its exit code, or that of a server that does not start. Raises SpecllamaError."""
    client = client_named(given["client"])
    values = resolved(given)
    key = next(iter(keys(values)), "")
    note_keys(given)
    running = _running(given, values, key)
    own = None if running is not None else serve_command(given, values, client)
    arguments = given.get("arguments") or client.alone
    if given.get("print_only"):
        if (shown := running) is None:  # the server that would be started, as far as it is known before
            assert own is not None
            shown = ModelServer(_url(own.host, own.port), own.model, key, own.n_ctx)
        settings = client.settings(replace(shown, key=SHOWN_KEY if key else ""), os.environ)
        console.data(printed(client, settings, arguments, own))
        return 0
    program = shutil.which(client.program)
    if program is None:
        raise EngineError(f"there is no {client.program} on PATH", f"install it: {client.install}")
    with contextlib.ExitStack() as stack:
        if own is not None:
            log = server.new_log()
            console.note(f"starting specllama serve; its log: {log}")
            process = stack.enter_context(server.OwnServer(own.flags, {**os.environ, **own.variables}, log))
            if (url := process.url(console.note)) is None:
                return process.exit_code
            running = server.find(defaults.from_here(url), key, "")
        if running is None:
            raise EngineError("the server does not answer", "see its log")
        _check_context(client, running, given, own is not None)
        if own is None:
            console.note(f"using {printable(running.model)} at {running.url}")
        settings = client.settings(running, os.environ)
        for path, text in settings.files.items():
            write_file(path, text, 0o600)  # it may have the key
        environ = {name: value for name, value in os.environ.items() if name not in settings.removed}
        environ |= settings.variables
        for name in ("NO_PROXY", "no_proxy"):  # proxies are for other machines
            hosts = environ.get(name, "")
            environ[name] = ",".join(filter(None, [hosts, "127.0.0.1", "localhost", "::1"]))
        return _run([program, *settings.arguments, *arguments], environ)


def _running(given: Mapping[str, Any], values: Mapping[str, Any], key: str) -> ModelServer | None:
    """The server that the client uses, None if one has to be started."""
    model = given.get("model", "")
    if "url" in given:
        for o in serve_options(given):
            raise UsageError(f"{option(o)} has no meaning with --url", "that server is running already")
        from specllama.bench.server_client import parse_address  # loads an HTTP client

        (base, *_) = parse_address(given["url"], "--url").bases
        url = base.removesuffix("/v1")
        running = server.find(url, key, model)
        if running is None and given.get("print_only"):
            return ModelServer(url, model or "NAME", key)
        if running is None:
            raise NotFoundError(f"there is no specllama at {url}", "start it with specllama serve")
        return running
    host, port = values.get("host", defaults.HOST), values.get("port", defaults.PORT)
    if host.startswith(defaults.UNIX):
        raise UsageError("must be an address for a client, not a unix socket", option="host")
    if serve_options(given):
        return None
    try:
        return server.find(_url(host, port), key, model)
    except NotFoundError:
        return None


def serve_options(given: Mapping[str, Any]) -> Sequence[str]:
    """The given options that only a server that is started can follow."""
    return [name for name in given if name not in _OF_ANY_SERVER]


def _url(host: str, port: int) -> str:
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return defaults.from_here(f"http://{host}:{port}")


def _check_context(client: Client, running: ModelServer, given: Mapping[str, Any], own: bool) -> None:
    """Raises ContextLengthError for a client that needs more tokens, unless forced. own: a server for it."""
    needed, name = client.n_ctx, printable(running.model)
    chosen = own and "n_ctx" in given
    if 0 < running.n_ctx < needed:
        has = f"has {running.n_ctx}"
        hint = f"restart it with {option('n_ctx', needed)}"
        if "url" not in given:
            hint = f"{option('n_ctx', needed)} starts another server"
    elif 0 < running.n_ctx_train < needed and not chosen:
        has = f"was trained on {running.n_ctx_train}"
        hint = f"choose another model, or a context yourself, as {option('n_ctx', needed)}"
    else:
        return
    what = f"{client.program} needs a context of {needed} tokens, {name} {has}"
    if not (chosen or given.get("force")):
        raise ContextLengthError(what, f"{hint}; {option('force')} goes on")
    console.warning(what)


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the client in the foreground. Ctrl-C is the client's; its exit code is returned."""
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the client would inherit
    try:
        with subprocess.Popen(command, env=environ) as process:
            try:
                code = process.wait()
            except BaseException:
                process.terminate()
                if not exits(process, _END_SECONDS):
                    process.kill()
                raise
    except OSError as error:
        raise EngineError(f"{command[0]} cannot be started: {error.strerror or error}") from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code


SHOWN_KEY = "$SPECLLAMA_API_KEY"
"""Instead of the server's key."""


def printed(
    client: Client, settings: ClientSettings, arguments: Sequence[str], own: ServeCommand | None
) -> str:
    """The lines. own: the server that would be started, if one would."""
    lines = [f"{shlex.join(['specllama', 'serve', *own.flags])} &"] if own is not None else []
    for path, text in settings.files.items():
        stays = _has(path, text)
        lines.append(f"# {path} " + ("stays as it is" if stays else "becomes:"))
        lines += [] if stays else [f"#   {line}" for line in text.splitlines()]
    lines += [f"unset {name}" for name in settings.removed]
    for name, value in settings.variables.items():
        quoted = f'"{value}"' if value == SHOWN_KEY else shlex.quote(value)
        lines.append(f"export {name}={quoted}")
    lines.append(shlex.join([client.program, *settings.arguments, *arguments]))
    return "".join(f"{line}\n" for line in lines)


def _has(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return read_regular(path) == text.encode()
    return False
