"""Compressed bodies, decoded in parts and within a limit."""

from __future__ import annotations

import gzip
import zlib

import pytest

from specllama.errors import UsageError
from specllama.server.app import ERRORS
from specllama.server.http.body import KNOWN, Decoder
from specllama.server.http.errors import HttpError

TEXT = b'{"content": "' + b"x" * 5000 + b'"}'


def decoded(encoding: str, data: bytes, step: int, most: int = 10_000) -> bytes:
    decoder = Decoder(encoding, most)
    output = b"".join(decoder.push(data[i : i + step]) for i in range(0, len(data), step))
    decoder.finish()
    return output


@pytest.mark.parametrize("step", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", TEXT),
        ("identity", TEXT),
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("x-gzip", gzip.compress(TEXT, mtime=0)),
        (" GZIP ", gzip.compress(TEXT, mtime=0)),
        ("gzip", gzip.compress(TEXT[:10], mtime=0) + gzip.compress(TEXT[10:], mtime=0)),
        ("deflate", zlib.compress(TEXT)),
    ],
)
def test_supported_encodings(encoding: str, data: bytes, step: int) -> None:
    assert decoded(encoding, data, step) == TEXT


@pytest.mark.parametrize("step", [1, 1000, 10_000_000])
def test_a_bomb_ends_at_the_limit(step: int) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)[:40_000]
    decoder, size = Decoder("gzip", 10_000), 0
    for i in range(0, len(bomb), step):
        size += len(decoder.push(bomb[i : i + step]))
    assert size == 10_001
    decoder.finish()  # that it is too long is for the reader to say


@pytest.mark.parametrize(
    "data", [b"nonsense", gzip.compress(TEXT, mtime=0)[:-9], gzip.compress(TEXT, mtime=0) + b"x", b""]
)
def test_bodies_not_in_the_declared_encoding(data: bytes) -> None:
    with pytest.raises(UsageError, match="the body is not gzip"):
        decoded("gzip", data, 100)


@pytest.mark.parametrize(
    "encoding", ["br", "gzip, gzip", "nonsense", "zstd" if "zstd" not in KNOWN else "lz4"]
)
def test_unknown_encodings(encoding: str) -> None:
    with pytest.raises(HttpError, match="Content-Encoding") as error:
        Decoder(encoding, 10)
    response = ERRORS.response(error.value)
    assert (response.status_code, response.headers["accept-encoding"]) == (415, ", ".join(KNOWN))


@pytest.mark.skipif("zstd" not in KNOWN, reason="Python has no zstd before 3.14")
def test_zstd() -> None:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]

    assert decoded("zstd", zstd.compress(TEXT), 7) == TEXT
