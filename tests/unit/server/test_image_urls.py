"""Images at addresses: which addresses are connected to, and where reading ends."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from specllama.errors import UsageError
from specllama.server import image_urls
from specllama.server.image_urls import MAX_REDIRECTS, ImageFetcher, is_public

LOCAL = ImageFetcher(lambda _address: True)


class Pages(http.server.BaseHTTPRequestHandler):
    """A small web server of images and what is none."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path
        if path.startswith("/to"):
            where = {"/to-image": "/image", "/to-self": "/to-self", "/to-file": "file:///etc/passwd"}[path]
            self.answer(302, b"", location=where)
        elif path == "/gone":
            self.answer(404, b"no")
        elif path == "/zipped":
            self.answer(200, b"x" * 9, **{"content-encoding": "gzip"})
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            while self.wfile.write(b"x" * 65536):
                pass
        elif path == "/slow":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            self.wfile.write(b"x")
            self.server.stop.wait(60)  # type: ignore[attr-defined]
        else:
            self.answer(200, self.headers["host"].encode())

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Clients leave early here."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = QuietServer(("127.0.0.1", 0), Pages)
    server.stop = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.stop.set()  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def refused(fetcher: ImageFetcher, url: str) -> str:
    with pytest.raises(UsageError) as error:
        fetcher.get(url)
    assert error.value.message.startswith("the image at ")
    return error.value.message


def test_an_image_and_a_redirect(site: str) -> None:
    assert LOCAL.get(f"http://{site}/image") == site.encode()
    assert LOCAL.get(f"http://{site}/to-image") == site.encode()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/gone", "answers 404"),
        ("/zipped", "compressed"),
        ("/to-self", f"more than {MAX_REDIRECTS} redirects"),
        ("/to-file", "only http and https"),
    ],
)
def test_what_is_not_read(site: str, path: str, why: str) -> None:
    assert why in refused(LOCAL, f"http://{site}{path}")


def test_reading_ends_at_the_limits(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_urls, "MAX_BYTES", 1_000_000)
    assert "more than 1 MB" in refused(LOCAL, f"http://{site}/endless")
    assert "too long" in refused(ImageFetcher(lambda _address: True, seconds=0.2), f"http://{site}/slow")


@pytest.mark.parametrize(
    "url",
    ["http://", "http://[::1", "ftp://example.org/a", "http://a b/", "http://x" * 2000, "http://xn--\uff0f/"],
)
def test_addresses_that_are_none(url: str) -> None:
    why = refused(LOCAL, url).rpartition("cannot be read: ")[2]
    assert why in (
        "only http and https are read",
        "this is no address on the web",
        "the address has more than 8192 characters",
        "there is no such host",
    )


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "Connection refused" in refused(LOCAL, f"http://127.0.0.1:{free.getsockname()[1]}/")


def test_what_is_wrong_is_said_in_words(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(LOCAL, f"https://{site}/image").endswith(
        "cannot be read: its certificate is not accepted, or it knows no TLS"
    )

    def unknown(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(image_urls.socket, "getaddrinfo", unknown)
    assert refused(LOCAL, "http://nowhere.invalid/").endswith("cannot be read: there is no such host")


def test_all_addresses_of_a_host_must_be_public(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the one that was checked is connected to: the name is resolved once."""
    port = int(site.rpartition(":")[2])
    calls = []

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        calls.append(host)
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.1", "10.0.0.1")]

    with monkeypatch.context() as patch:
        patch.setattr(image_urls.socket, "getaddrinfo", resolve)
        first_alone = ImageFetcher(lambda address: address == "127.0.0.1")
        assert "example.org (10.0.0.1) is not a public address" in refused(
            first_alone, f"http://example.org:{port}/image"
        )
    assert calls == ["example.org"]
    for url in (
        "http://localhost/",
        "http://[::1]/",
        "http://0/",
        "http://169.254.169.254/",
        "http://2130706433/",
    ):
        assert "not a public address" in refused(ImageFetcher(), url), url


def test_a_redirect_is_checked_too(site: str) -> None:
    asked: list[str] = []

    def once(address: str) -> bool:
        asked.append(address)
        return len(asked) == 1

    assert "not a public address" in refused(ImageFetcher(once), f"http://{site}/to-image")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("2001:4860:4860::8888", True), ("::ffff:8.8.8.8", True),
        ("127.0.0.1", False), ("10.1.2.3", False), ("172.16.0.1", False), ("192.168.1.1", False),
        ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False), ("255.255.255.255", False),
        ("224.0.0.1", False), ("240.0.0.1", False), ("::", False), ("::1", False), ("fe80::1%eth0", False),
        ("fc00::1", False), ("ff02::1", False), ("::ffff:127.0.0.1", False), ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("2001:0:7f00:1::", False),
        ("2001:db8::1", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public
