"""The web page at /: its files and their headers. Knows no models.

The page is HTML, CSS and JavaScript modules in static/, served unchanged. Its content security policy lets it
load from and connect to this server only, and run no code outside its files, so that the output of a model is
shown and never executed. The files need no key: the page asks for it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import NamedTuple

from starlette.responses import PlainTextResponse, Response

from specllama.core.sampling.params import PARAMETERS
from specllama.data import CHARTS_CSS, CHARTS_JS
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_IMPORT = re.compile(r"""(?m)^(?:import|export) (?:.*?from )?["']\./(.*?)["'];""")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",  # of attached images
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify",
    )
)
_HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-cache",  # ask each time; the answer is 304 unless the file is another one
    "vary": "Accept",
}


def generated_files() -> dict[str, str]:
    """Modules of the page that are generated from the program's tables, by their path below /page/."""
    names = json.dumps([name for name, parameter in PARAMETERS.items() if parameter.has_plain_value])
    return {"parameters.js": f"export const PARAMETERS = {names};\n"}


class _PageFile(NamedTuple):
    """A file as it is sent. tag: its ETag, a digest of the content."""

    content: bytes
    media_type: str
    tag: str


def page_files() -> dict[str, Path]:
    """All files of the page by their path below /page/."""
    files = {path.relative_to(_STATIC).as_posix(): path for path in sorted(_STATIC.rglob("*.*"))}
    return files | {path.name: path for path in (CHARTS_JS, CHARTS_CSS)}


@functools.cache
def _page_file(name: str, read: Callable[[], bytes]) -> _PageFile:
    content = read()
    tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    return _PageFile(content, _TYPES[PurePath(name).suffix], tag)


def _index() -> bytes:
    """Names all modules that are loaded at once: one round trip in place of one for each import."""
    files, scripts, waiting = page_files(), set[str](), ["app.js"]
    while waiting:
        name = waiting.pop()
        if name in files and name not in scripts:
            waiting += _IMPORT.findall(files[name].read_text("utf-8"))
        scripts.add(name)
    links = "".join(f'<link rel="modulepreload" href="page/{name}">\n' for name in sorted(scripts))
    text = (_STATIC / "index.html").read_text("utf-8")
    return text.replace("<script ", f"{links}<script ", 1).encode()


def _sent(file: _PageFile, api: ApiRequest) -> Response:
    headers = _HEADERS | {"etag": file.tag}
    known = [tag.strip().removeprefix("W/") for tag in api.header("if-none-match").split(",")]
    if file.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers | {"content-type": file.media_type})


async def root(api: ApiRequest) -> Response:
    """The page for browsers, a line of text for others: Ollama's clients probe the server this way."""
    if "text/html" not in api.header("accept"):
        return PlainTextResponse("specllama is running", headers={"vary": "Accept"})
    return _sent(_page_file("index.html", _index), api)


def _route(name: str, read: Callable[[], bytes]) -> ApiRoute:
    async def send(api: ApiRequest) -> Response:
        return _sent(_page_file(name, read), api)

    return ApiRoute("GET", f"/page/{name}", send, open=True)


ROUTES = (
    ApiRoute("GET", "/", root, open=True),
    *(_route(name, path.read_bytes) for name, path in page_files().items()),
    *(_route(name, text.encode) for name, text in generated_files().items()),
)
