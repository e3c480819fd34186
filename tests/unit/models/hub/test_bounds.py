"""Responses of a hub that are too large, too deep or wrong, and left-over links in its cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specllama.errors import NetworkError
from specllama.models.hub import api
from specllama.models.hub.api import Hub, HubFile, Listing
from specllama.models.hub.cache import RepoCache, hash_for
from specllama.models.hub.pull import DownloadItem, fetch
from specllama.models.names import RepoName
from specllama.models.progress import Listener

NAME, COMMIT = RepoName("user/repo"), "a" * 40
LISTING = Listing(NAME, COMMIT, {})
SHA = "b" * 64


@contextlib.contextmanager
def responding(response: bytes) -> Iterator[str]:
    """The address of a server that sends these bytes to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    with link, contextlib.suppress(OSError):
                        link.recv(65536)
                        link.sendall(response)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def listing(**changes: Any) -> bytes:
    file = {"rfilename": "m-Q8_0.gguf", "lfs": {"size": 10, "sha256": SHA}}
    return json.dumps({"sha": COMMIT, "siblings": [file], **changes}).encode()


def listed(body: bytes, *headers: str) -> dict[str, HubFile]:
    with responding(http(body, *headers)) as endpoint:
        environ = {"HF_ENDPOINT": endpoint}
        return dict(Hub(environ, Listener()).listing(NAME).files)


BAD_LISTINGS = {
    "deep": b"[" * 200_000,
    "deep object": b'{"sha":' * 100_000,
    "huge number": b'{"sha":' + b"9" * 5000 + b"}",
    "large": b" " * (9 << 20) + listing(),
    "many values": b"[" + b"[]," * 1_000_000 + b"[]]",
    "list": b"[1, 2]",
    "no commit": listing(sha=7),
    "siblings": listing(siblings=7),
    "lfs": listing(siblings=[{"rfilename": "x", "lfs": [1]}]),
    "card": listing(cardData=["x"]),
    "the same name twice": listing(
        siblings=[{"rfilename": "m.gguf", "lfs": {"size": n, "sha256": SHA}} for n in (1, 2)]
    ),
    "not UTF-8": b'{"sha": "\xff"}',
}


@pytest.mark.parametrize("kind", BAD_LISTINGS)
def test_a_listing_that_is_none_is_a_network_error(kind: str) -> None:
    began = time.process_time()
    with pytest.raises(NetworkError, match="does not respond as a hub does"):
        listed(BAD_LISTINGS[kind])
    assert time.process_time() - began < 2


def test_a_compressed_listing_is_refused() -> None:
    with pytest.raises(NetworkError, match="does not respond as a hub does"):
        listed(b"\x1f\x8b", "Content-Encoding: gzip")


@pytest.mark.parametrize("size", [-1, True, 1.5, "10", None, 1 << 51, 10**4000])
def test_files_with_impossible_sizes_are_left_out(size: object) -> None:
    bad = {"rfilename": "bad.gguf", "lfs": {"size": size, "sha256": SHA}}
    good = {"rfilename": "good.gguf", "lfs": {"size": 10, "sha256": SHA}}
    assert list(listed(listing(siblings=[bad, good]))) == ["good.gguf"]


@pytest.mark.parametrize(
    "path", ["../x", "a/../b", "/x", "a\x1b[2Jb", "a\u202eb", "a//b", "x" * 2000, "a\\b", ""]
)
def test_files_with_unsafe_paths_are_left_out(path: object) -> None:
    assert listed(listing(siblings=[{"rfilename": path, "lfs": {"size": 10, "sha256": SHA}}])) == {}


NINES = "9" * 5000


@pytest.mark.parametrize(
    "headers",
    [
        (f"Content-Range: bytes {NINES}-{NINES}/{NINES}",),
        (f"Content-Range: bytes 5-9/{NINES}",),
        ("Content-Range: bytes 5-9/10, bytes 5-9/10",),
        ("Content-Range: bytes 4-9/10",),
        (),
    ],
)
def test_a_range_that_is_none_is_a_network_error(headers: tuple[str, ...]) -> None:
    with (
        responding(http(b"x" * 5, *headers, status="206 Partial Content")) as endpoint,
        pytest.raises(NetworkError, match="responds with the bytes"),
        Hub({"HF_ENDPOINT": endpoint}, Listener()).get(LISTING, "x", 5),
    ):
        pass


@pytest.mark.parametrize(
    "location", ["http://[", "file:///etc/passwd", "http://127.0.0.1:99999/", "x" * 9000]
)
def test_a_redirect_to_no_address_is_a_network_error(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SHORT_WAITS", (0.0,))
    with (
        responding(http(b"", f"Location: {location}", status="302 Found")) as endpoint,
        pytest.raises(NetworkError),
    ):
        Hub({"HF_ENDPOINT": endpoint}, Listener()).size(LISTING, "x")


@pytest.mark.parametrize("endpoint", ["http://[", "http://h:99999", "ftp://h", "x" * 9000, "http://"])
def test_an_endpoint_that_is_no_address_is_a_network_error(endpoint: str) -> None:
    with pytest.raises(NetworkError, match="HF_ENDPOINT"):
        Hub({"HF_ENDPOINT": endpoint}, Listener()).listing(NAME)


CONTENT = b"content of a model"
ETAG = "f0b27ad76ed3b8d9a7a2a4b9d0a7a2c5e5e2ed0b"


@pytest.fixture
def cache(tmp_path: Path) -> RepoCache:
    made = RepoCache(tmp_path / "hub", "user/repo")
    made.make_directories()
    made.blob("1" * 64).write_bytes(CONTENT)
    made.blob("2" * 64).write_bytes(b"another model")
    return made


@pytest.mark.parametrize("how", ["symlink", "hard link"])
def test_a_download_never_writes_through_a_left_over_link(cache: RepoCache, how: str) -> None:
    other, etag = cache.blob("2" * 64), hashlib.sha256(CONTENT).hexdigest()
    (os.symlink if how == "symlink" else os.link)(other, cache.partial(etag))
    with responding(http(CONTENT)) as endpoint:
        item = DownloadItem(LISTING, HubFile("m.gguf", len(CONTENT), etag), cache, 0)
        path = cache.blob(
            fetch(Hub({"HF_ENDPOINT": endpoint}, Listener()), item, Listener(), lambda *_: None)
        )
    assert path.read_bytes() == CONTENT
    assert not path.is_symlink()
    assert other.read_bytes() == b"another model"


def test_links_and_records_never_write_through_a_left_over_link(cache: RepoCache) -> None:
    other = cache.blob("2" * 64)
    folder = cache.snapshot(COMMIT)
    folder.mkdir(parents=True)
    refs = cache.folder / "refs"
    refs.mkdir()
    for name in (".m.gguf.{}.tmp", "m.gguf"):
        os.symlink(other, folder / name.format(os.getpid()))
    for name in ("main.{}.tmp", "main"):
        os.symlink(other, refs / name.format(os.getpid()))
    record = cache.root / ".locks" / cache.folder.name / f"{ETAG}.json"
    os.symlink(other, record)
    assert cache.link(COMMIT, "m.gguf", "1" * 64).read_bytes() == CONTENT
    cache.point("main", COMMIT)
    cache.remember(ETAG, '"v"', "main")
    assert (cache.commit_of("main"), cache.validator(ETAG)) == (COMMIT, '"v"')
    assert other.read_bytes() == b"another model"


def test_files_are_copied_only_where_links_are_impossible(
    cache: RepoCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def symlink(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", symlink)
    copied = cache.link(COMMIT, "m.gguf", "1" * 64)
    assert (copied.is_symlink(), copied.read_bytes()) == (False, CONTENT)
    assert sorted(os.listdir(cache.snapshot(COMMIT))) == ["m.gguf"]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(OSError, match="No space"):
        cache.link(COMMIT, "other.gguf", "1" * 64)
    assert sorted(os.listdir(cache.snapshot(COMMIT))) == ["m.gguf"]


@pytest.mark.parametrize("data", [b"", b"a", b"ab" * 5000])
def test_digests_are_those_of_the_hub(data: bytes) -> None:
    for etag, expected in (
        (hashlib.sha256(data).hexdigest(), hashlib.sha256(data)),
        ("0" * 40, hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)),
    ):
        hasher = hash_for(etag, len(data))
        hasher.update(data)
        assert hasher.hexdigest() == expected.hexdigest()


def test_a_listing_that_never_ends_is_a_network_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends a byte now and then, so that no single wait is too long."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            link, _ = listener.accept()
            with link, contextlib.suppress(OSError):
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
                while True:
                    link.sendall(b" ")
                    time.sleep(0.2)

        threading.Thread(target=serve, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(NetworkError, match="does not respond as a hub does"):
            Hub({"HF_ENDPOINT": f"http://127.0.0.1:{listener.getsockname()[1]}"}, Listener()).listing(NAME)
        assert time.monotonic() - began < 10
