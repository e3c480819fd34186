"""Opens a page in the user's browser, for `serve --open`. Knows no server."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from specllama.clock import exited, wait_until

_SECONDS = 20.0  # for the browser, or what starts it, to take the address
_OPEN = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.argv[1]))"
_LOCAL = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # of addresses that stand for all of a machine's


def open_page(url: str, say: Callable[[str], None]) -> None:
    """Open a page in the default browser. Returns at once; `say` gets a line if none could be opened."""
    parts = urlsplit(url)
    host = _LOCAL.get(parts.hostname or "")
    if host is not None:
        url = urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))
    threading.Thread(target=_open, args=(url, say), daemon=True).start()


def _open(url: str, say: Callable[[str], None]) -> None:
    """In a process of its own: a browser in a terminal would take this one, and others write to stdout."""
    opener = subprocess.Popen(
        [sys.executable, "-P", "-c", _OPEN, url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if wait_until(exited(opener), _SECONDS) and opener.returncode:  # else it runs in the foreground
        say(f"no browser could be opened; the page is at {url}")
