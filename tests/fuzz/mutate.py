"""Random changes of bytes and of JSON values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

INTEGERS = (0, 1, 2, 7, 31, 32, 63, 64, 127, 128, 255, 256, 1 << 15, 1 << 16, 1 << 20, 1 << 31, 1 << 32)
INTEGERS += (*(n - 1 for n in INTEGERS if n), 1 << 40, 1 << 60, 1 << 61, 1 << 62, (1 << 63) - 1, 1 << 63)
INTEGERS += ((1 << 64) - 32, (1 << 64) - 8, (1 << 64) - 2, (1 << 64) - 1)
TEXTS = (
    "", "\0", "\x1b]52;c;eA==\x07", "\ud800", "a" * 70, "é" * 40, "\U0001f600", "../../x", "NaN", "-1",
    "null", "%s%n", "\r\n\r\n", "<|im_end|>", "\u202e", "9" * 400,
)  # fmt: skip


def mutated(rng: random.Random, data: bytes, tokens: Sequence[bytes] = ()) -> bytes:
    """The bytes after one to eight changes. tokens: pieces that mean something to the reader."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 2:
            del out[at : at + rng.choice((1, 1, 4, 16, 64))]
        elif kind == 3:
            end = at + rng.choice((1, 8, 64, 256))
            out[at:at] = out[at:end] * rng.choice((1, 1, 2, 50, 2000))
        elif kind == 4 and tokens:
            out[at:at] = rng.choice(tokens) * rng.choice((1, 1, 1, 3, 500))
        elif kind == 5:
            out[at : at + rng.randrange(12)] = str(rng.choice(INTEGERS) * rng.choice((1, 1, -1))).encode()
        elif kind == 6:
            out[at : at + rng.randrange(4)] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
    return bytes(out[: 1 << 20])


def value(rng: random.Random, depth: int = 0) -> Any:
    """A JSON value."""
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice(INTEGERS) * rng.choice((1, -1))
    if kind == 2:
        return rng.choice((0.0, -0.0, 1e308, 5e-324, 0.5, float("nan"), float("inf"), 1e18))
    if kind in (3, 4):
        return rng.choice(TEXTS) * rng.choice((1, 1, 1, 100))
    if kind == 5:
        return nested(rng.choice((1, 3, 40, 300)))
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 5)))]
    return {rng.choice(TEXTS): value(rng, depth + 1) for _ in range(rng.choice((0, 1, 3)))}


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def changed(rng: random.Random, given: Any) -> Any:
    """A JSON value with one part of it replaced, removed or added."""
    if isinstance(given, dict) and given and rng.random() < 0.9:
        out = dict(given)
        key = rng.choice(list(out))
        kind = rng.randrange(10)
        if kind == 0:
            del out[key]
        elif kind == 1:
            out[rng.choice(TEXTS)] = value(rng)
        else:
            out[key] = changed(rng, out[key])
        return out
    if isinstance(given, list) and given and rng.random() < 0.8:
        items = list(given)
        at = rng.randrange(len(items))
        if rng.random() < 0.2:
            return items[:at] + items[at : at + 1] * rng.choice((0, 2, 300)) + items[at + 1 :]
        items[at] = changed(rng, items[at])
        return items
    return value(rng)
