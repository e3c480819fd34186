"""Which ids stand for images, and their encoding in a thread, with an encoder of a few lines."""

from __future__ import annotations

import gc
import hashlib
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from specllama.client.protocol import Image
from specllama.core.image_rows import ImageEmbeddings, image_runs, without_images
from specllama.errors import EngineError, UsageError
from specllama.worker.images import ImageEncoder, PromptImages, shown

BEGIN, END = 7, 8  # ids around an image


class Halves:
    """An encoder with two parts for wide images, and one row for each pixel of height in a part."""

    key = b"halves"

    def __init__(self) -> None:
        self.n_encoded, self.may_go, self.error = 0, threading.Event(), None
        self.may_go.set()

    def pieces(self, width: int, height: int) -> list[list[int] | int]:
        if height > 100:
            raise UsageError("the image is too high")
        return [[BEGIN], height, [END]] if width <= height else [[BEGIN], height, height, [END]]

    def encode(self, rgb, width: int, height: int, wanted) -> list[ImageEmbeddings]:
        self.wanted = wanted
        assert self.may_go.wait(30)
        self.n_encoded += 1
        if self.error is not None:
            raise self.error
        pixels = np.frombuffer(rgb, np.uint8).reshape(height, width, 3)
        n = sum(isinstance(piece, int) for piece in self.pieces(width, height))
        rows = pixels[:, :2, 0].astype(np.float32)
        return [ImageEmbeddings(rows, None, height, True)] * n


def image_of(folder: Path, width: int, height: int, value: int = 1) -> Image:
    pixels = bytes([value]) * (3 * width * height)
    path = folder / f"{width}x{height}-{value}"
    path.write_bytes(pixels)
    return Image(hashlib.sha256(f"{width} {height}".encode() + pixels).hexdigest(), width, height, str(path))


def tokenize(text: str, add_special: bool, parse_special: bool) -> list[int]:
    """BOS is 1, control tokens are upper-case letters in texts of the template."""
    return [1] * add_special + [ord(c) + (1000 if parse_special and c.isupper() else 0) for c in text]


@pytest.fixture
def encoder() -> ImageEncoder:
    return ImageEncoder(Halves(), lambda: None)


def awaited(part) -> ImageEmbeddings:
    """What a part is encoded to."""
    part.image.begin().exception(30)
    return part.encoded()


def test_markers_become_the_ids_of_their_images(tmp_path, encoder):
    high, wide = image_of(tmp_path, 2, 3), image_of(tmp_path, 4, 3)
    images = PromptImages([high, wide], tokenize, encoder)
    ids = images.tokenize(f"{high.marker}ab{wide.marker}{high.marker}C", True, True)
    assert without_images(ids) == [1, BEGIN, END, 97, 98, BEGIN, END, BEGIN, END, 1067]
    assert [end - begin for begin, end in image_runs(ids)] == [3, 3, 3, 3]
    rows = images.rows(ids)
    assert [(part.begin, part.end, part.index) for part in rows] == [
        (2, 5, 0), (9, 12, 0), (12, 15, 1), (17, 20, 0)
    ]  # fmt: skip
    assert rows[0].image is rows[3].image
    assert images.tokenize("ab", False, False) == [97, 98]
    assert images.tokenize("", True, False) == [1]
    again = PromptImages([high], tokenize, encoder).tokenize(high.marker, False, False)
    assert again == [BEGIN, *ids[2:5], END]
    assert images.knows(again)
    assert not PromptImages([wide], tokenize, encoder).knows(again)


def test_texts_that_look_like_markers_stay_texts(tmp_path, encoder):
    one = image_of(tmp_path, 2, 3)
    text = "<__media__> <__media_0123456789abcdef0123456789abcdef__>"
    expected = [ord(c) for c in text]
    assert PromptImages([one], tokenize, encoder).tokenize(text, False, False) == expected
    assert PromptImages([], tokenize, None).tokenize(one.marker, False, False) == list(map(ord, one.marker))
    assert shown(f"a {one.marker} b") == "a <__media__> b"


def test_images_that_cannot_be_in_the_prompt_are_errors(tmp_path, encoder):
    one, other = image_of(tmp_path, 2, 3), image_of(tmp_path, 2, 4)
    images = PromptImages([one, other], tokenize, encoder)
    with pytest.raises(UsageError, match="image 2 is not in the prompt"):
        images.rows(images.tokenize(one.marker, False, False))
    with pytest.raises(UsageError, match="without a projector"):
        PromptImages([one], tokenize, None)
    with pytest.raises(UsageError, match="too high"):
        PromptImages([image_of(tmp_path, 1, 101)], tokenize, encoder)


def test_an_image_is_encoded_once_and_needs_its_file_only_before(tmp_path):
    halves, woken = Halves(), threading.Event()
    encoder = ImageEncoder(halves, woken.set)
    one = image_of(tmp_path, 3, 2, value=9)
    prompts = [PromptImages([one], tokenize, encoder) for _ in range(2)]
    first, second = (p.rows(p.tokenize(f"x{one.marker}", False, False)) for p in prompts)
    Path(one.path).unlink()
    assert [awaited(part).rows.tolist() for part in (*first, *second)] == [[[9, 9]] * 2] * 4
    assert halves.n_encoded == 1
    assert woken.wait(30)


def test_other_work_goes_on_meanwhile(tmp_path, encoder):
    halves = encoder.encoder
    halves.may_go.clear()
    images = PromptImages([image_of(tmp_path, 2, 3)], tokenize, encoder)
    (part,) = images.rows(images.tokenize(image_of(tmp_path, 2, 3).marker, False, False))
    assert part.encoded() is None
    halves.may_go.set()
    assert len(awaited(part).rows) == 3


def test_what_nobody_wants_any_more_is_not_encoded(tmp_path, encoder):
    halves = encoder.encoder
    halves.may_go.clear()
    parts = []
    for n in (3, 4, 5):
        image = image_of(tmp_path, 2, n)
        images = PromptImages([image], tokenize, encoder)
        parts.append(images.rows(images.tokenize(image.marker, False, False))[0])
        assert parts[-1].encoded() is None
    del parts[1], images
    gc.collect()
    halves.may_go.set()
    assert len(awaited(parts[1]).rows) == 5
    assert halves.n_encoded == 2


@pytest.mark.parametrize(
    ("error", "message"),
    [(EngineError("no memory"), "no memory"), (RuntimeError("a fault"), "RuntimeError while an image")],
)
def test_what_the_encoder_raises_is_an_error_of_the_request(tmp_path, encoder, error, message):
    encoder.encoder.error = error
    images = PromptImages([image_of(tmp_path, 2, 3)], tokenize, encoder)
    (part,) = images.rows(images.tokenize(image_of(tmp_path, 2, 3).marker, False, False))
    with pytest.raises(EngineError, match=message):
        awaited(part)


def test_what_is_encoded_stops_being_wanted_and_stays_for_a_while(tmp_path, encoder, monkeypatch):
    halves = encoder.encoder
    halves.may_go.clear()
    one = image_of(tmp_path, 3, 50)

    def part():
        images = PromptImages([one], tokenize, encoder)
        return images.rows(images.tokenize(one.marker, False, False))[0]

    cancelled = part()
    assert cancelled.encoded() is None
    while not hasattr(halves, "wanted"):  # the thread is at it
        time.sleep(0.001)
    assert halves.wanted()
    del cancelled
    gc.collect()
    assert not halves.wanted()
    halves.may_go.set()
    assert len(awaited(part()).rows) == 50
    gc.collect()
    Path(one.path).unlink()
    assert len(awaited(part()).rows) == 50  # which other text may be before now
    assert halves.n_encoded == 2
    monkeypatch.setattr("specllama.worker.images._MOST_KEPT", 1)
    other = image_of(tmp_path, 2, 3)
    images = PromptImages([other], tokenize, encoder)
    awaited(images.rows(images.tokenize(other.marker, False, False))[0])
    with pytest.raises(EngineError, match="cannot read the image"):
        part()


def test_files_that_hold_no_image_are_errors(tmp_path, encoder):
    one = image_of(tmp_path, 2, 3)
    images = PromptImages([one], tokenize, encoder)
    ids = images.tokenize(one.marker, False, False)
    Path(one.path).write_bytes(b"short")
    with pytest.raises(EngineError, match="has 5 bytes, not 18"):
        images.rows(ids)
    for spoil in (lambda p: p.write_bytes(b""), Path.unlink, Path.mkdir):
        spoil(Path(one.path))
        with pytest.raises(EngineError, match="cannot read the image"):
            images.rows(ids)
