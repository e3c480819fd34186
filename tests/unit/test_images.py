"""Decoding of image files: formats, what counts of them, and what is refused."""

from __future__ import annotations

import base64
import gc
import io
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pillow

from specllama import images
from specllama.errors import NotFoundError, ResourceError, UsageError
from specllama.images import (
    bytes_of_text,
    check_n_images,
    join_around,
    load_array,
    load_image,
    load_image_file,
    load_image_text,
    load_pil,
)


def saved(image: Any, form: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def gradient(width: int = 24, height: int = 16) -> Any:
    image = pillow.new("RGB", (width, height))
    colours = ((x * 9 % 256, y * 13 % 256, (x + y) * 5 % 256) for y in range(height) for x in range(width))
    image.putdata(list(colours))
    return image


def pixels(data: bytes) -> bytes:
    image = load_image(data)
    return Path(image.path).read_bytes()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


@pytest.mark.parametrize("form", ["PNG", "WebP", "BMP", "GIF", "JPEG"])
def test_formats(form: str) -> None:
    image = gradient()
    data = saved(image, form, **({"lossless": True} if form == "WebP" else {}))
    loaded = load_image(data)
    assert (loaded.width, loaded.height) == image.size
    read = Path(loaded.path).read_bytes()
    assert len(read) == 24 * 16 * 3
    if form not in ("GIF", "JPEG"):
        assert read == image.tobytes()
    else:
        assert max(abs(a - b) for a, b in zip(read, image.tobytes(), strict=True)) < 80


def test_equal_pixels_have_one_digest_and_equal_bytes_one_object() -> None:
    image = gradient()
    png, bmp = load_image(saved(image)), load_image(saved(image, "BMP"))
    assert png.digest == bmp.digest
    assert png.marker == f"<__media_{png.digest[:32]}__>"
    assert load_image(saved(image)) is png
    assert load_image(saved(gradient(16, 24))).digest != png.digest


def test_images_of_other_scopes_have_nothing_in_common() -> None:
    data = saved(gradient())
    mine, theirs = load_image(data, scope="key 1"), load_image(data, scope="key 2")
    assert len({mine.digest, theirs.digest, load_image(data).digest}) == 3
    assert load_image(data, scope="key 1") is mine
    assert Path(mine.path).read_bytes() == Path(theirs.path).read_bytes()


def test_files_of_killed_processes_are_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, held, other = (tmp_path / f"{images._PREFIX}{name}" for name in ("left", "held", "other"))
    for folder in (left, held):
        folder.mkdir()
        (folder / "pixels").write_bytes(b"x")
    other.write_bytes(b"no folder")
    assert images._locked(held) is not None, "as the process has that runs"
    images.remove_left()
    assert not left.exists()
    left.mkdir()
    image = load_image(saved(gradient(3, 5)))
    assert not left.exists()
    assert (held / "pixels").exists()
    assert other.exists()
    folder = Path(image.path).parent
    assert folder.parent == tmp_path
    assert images._locked(folder) is None
    shutil.rmtree(folder)
    assert Path(load_image(saved(gradient(5, 3))).path).exists()


def test_the_file_goes_with_the_object() -> None:
    image = load_image(saved(gradient(7, 5)))
    path = Path(image.path)
    assert path.stat().st_size == 7 * 5 * 3
    del image
    gc.collect()
    assert not path.exists()


def test_modes() -> None:
    grey = pillow.new("L", (3, 2), 200)
    assert pixels(saved(grey)) == bytes([200] * 18)
    black_and_white = pillow.frombytes("1", (2, 1), b"\x40")
    assert pixels(saved(black_and_white)) == bytes([0] * 3 + [255] * 3)
    wide = pillow.frombytes("I;16", (2, 1), struct.pack("<2H", 0x80FF, 0x0101))
    assert pixels(saved(wide)) == bytes([0x80] * 3 + [1] * 3)
    assert pixels(saved(gradient().quantize(4))) == gradient().quantize(4).convert("RGB").tobytes()
    cmyk = pillow.new("CMYK", (16, 16), (0, 255, 255, 0))
    assert abs(pixels(saved(cmyk, "JPEG"))[0] - 255) < 5


def test_transparency_is_dropped() -> None:
    clear = pillow.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert pixels(saved(clear)) == bytes([10, 20, 30] * 4)
    assert pixels(saved(pillow.new("LA", (1, 1), (9, 0)))) == bytes([9] * 3)
    palette = pillow.new("P", (2, 2), 1)
    palette.putpalette([1, 2, 3, 4, 5, 6])
    assert pixels(saved(palette, transparency=b"\x00\x00")) == bytes([4, 5, 6] * 4)


@pytest.mark.parametrize("turn", range(1, 9))
def test_orientation(turn: int) -> None:
    exif = pillow.Exif()
    exif[0x0112] = turn
    image = gradient(4, 3)
    loaded = load_image(saved(image, "PNG", exif=exif))
    assert (loaded.width, loaded.height) == ((3, 4) if turn > 4 else (4, 3))
    first = Path(loaded.path).read_bytes()[:3]
    corners = {1: (0, 0), 2: (3, 0), 3: (3, 2), 4: (0, 2), 5: (0, 0), 6: (0, 2), 7: (3, 2), 8: (3, 0)}
    assert tuple(first) == image.getpixel(corners[turn])


def test_the_first_image_of_an_animation() -> None:
    frames = [pillow.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(data)[:3] == bytes([255, 0, 0])


HEADERS = {
    "empty": b"",
    "not an image": b"hello, world",
    "SVG": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"/>',
    "PDF": b"%PDF-1.7\n",
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0",
    "AVIF": b"\0\0\0\x18ftypavif\0\0\0\0",
    "TIFF": b"II*\0\x08\0\0\0",
}


@pytest.mark.parametrize("what", HEADERS)
def test_other_files(what: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        load_image(HEADERS[what], "messages[0]")
    assert caught.value.message.startswith("messages[0]: ")
    assert "PNG, JPEG, WebP, GIF or BMP" in caught.value.hint


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WebP", "GIF", "BMP"])
def test_cut_off(form: str) -> None:
    data = saved(gradient(200, 100), form)
    for n in (12, 20, 40, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(
            UsageError, match=r"the image is cut off: the \w+ file has no end|no pixels|not an image"
        ):
            load_image(data[:n])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WebP", "GIF", "BMP"])
def test_damaged(form: str) -> None:
    """In words of ours, whatever Pillow says."""
    data = saved(gradient(200, 100), form)
    begin = 28 if form == "BMP" else 20
    with pytest.raises(
        UsageError, match=f"the image is damaged, or a kind of {form} that is not read here\n"
    ):
        load_image(data[:begin] + b"\x07" * (len(data) - begin - 12) + data[-12:])


def test_too_many_pixels() -> None:
    for width, height in ((60_000, 60_000), (20_000_001, 1), (5000, 4001)):
        with pytest.raises(UsageError, match=f"{width} × {height} pixels"):
            load_image(png_header(width, height) + chunk(b"IDAT", zlib.compress(b"")))
    gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + b"\0\0\0,\0\0\0\0" + struct.pack("<HH", 65535, 65535)
    with pytest.raises(UsageError, match="65535 × 65535"):
        load_image(gif + b"\0\x02\x02D\x01\0;")
    with pytest.raises(UsageError, match=r"no pixels|cut off"):
        load_image(png_header(0, 4))


def test_scans_of_a_jpeg_are_limited() -> None:
    data = saved(gradient(), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    with pytest.raises(UsageError, match="scans"):
        load_image(data[:-2] + scan * 200 + data[-2:])
    assert load_image(data)


def test_too_many_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "MAX_BYTES", 50)
    file = tmp_path / "large.png"
    file.write_bytes(saved(gradient()))
    for load in (lambda: load_image(file.read_bytes()), lambda: load_image_file(file)):
        with pytest.raises(UsageError, match="more than"):
            load()
    with pytest.raises(UsageError, match="more than"):
        load_image_text("data:image/png;base64," + "A" * 200)


def test_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = saved(gradient(9, 9))
    with monkeypatch.context() as patch:
        patch.setattr(images, "_MAX_DECODED", 1)
        with pytest.raises(ResourceError, match="room"):
            load_image(data)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ResourceError, match="cannot be written"):
        load_image(data)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "an image.png"
    file.write_bytes(saved(gradient()))
    assert load_image_file(file) is load_image_file(str(file))
    with pytest.raises(NotFoundError, match="cannot be read"):
        load_image_file(tmp_path / "nowhere.png")
    for path in (tmp_path, "a\0b"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_image_file(path)
    file.write_bytes(b"text")
    with pytest.raises(UsageError, match=r"an image\.png.*not an image"):
        load_image_file(file)


def test_texts() -> None:
    data = saved(gradient())
    plain = base64.b64encode(data).decode()
    image = load_image(data)
    for text in (
        plain,
        plain.rstrip("="),
        f"data:image/png;base64,{plain}",
        f"DATA:;BASE64,{plain[:40]}\n{plain[40:]}",
    ):
        assert load_image_text(text) is image


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("data:image/png,%89PNG", "not in base64"),
        ("data:image/png;base64", "not in base64"),
        ("data:image/png;base64,%89PNG", "not valid base64"),
        ("data:image/png;base64,", "empty"),
        ("", "empty"),
        ("A", "not valid base64"),
        ("äöü", "not valid base64"),
        ("http://localhost/a.png", "not read here"),
        ("ftp://localhost/a.png", "not read here"),
        ("file:///etc/passwd", "files of the server"),
        ("file:/etc/passwd", "files of the server"),
    ],
)
def test_texts_that_are_no_image(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        load_image_text(text, "image")


def test_images_of_pillow() -> None:
    image = gradient()
    loaded = load_pil(image)
    assert loaded.digest == load_image(saved(image)).digest
    assert load_pil(image) is loaded
    with pytest.raises(UsageError, match="pixels"):
        load_pil(pillow.new("1", (20_001, 1000)))


def test_arrays_of_numpy() -> None:
    image = gradient()
    array = np.asarray(image)
    assert load_array(array).digest == load_pil(image).digest
    assert load_array(array[::-1, ::2]).width == 12
    assert load_array(np.dstack([array, array[:, :, 0]])).digest == load_pil(image).digest
    grey = load_array(np.full((2, 3), 7, np.uint8))
    assert Path(grey.path).read_bytes() == bytes([7] * 18)
    for other in (array / 255, array.transpose(2, 0, 1), array[:, :, :2], array[0, 0], array[None]):
        with pytest.raises(UsageError, match=r"here: an array of \w+ of the shape \(.*\) is no image"):
            load_array(other, "here")
    with pytest.raises(UsageError, match="no pixels"):
        load_array(np.zeros((0, 5, 3), np.uint8))
    with pytest.raises(UsageError, match="20001 × 1000 pixels"):
        load_array(np.zeros((1000, 20_001), np.uint8))


def test_an_image_of_pillow_without_its_file() -> None:
    image = pillow.open(io.BytesIO(saved(gradient(200, 100))[:-90]))
    with pytest.raises(UsageError, match=r"here: this image of Pillow cannot be read\n"):
        load_pil(image, "here")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_is_no_matter() -> None:
    data = saved(gradient(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01")
    assert load_image(data).width == 24


def test_the_number_of_images() -> None:
    check_n_images(range(100))
    with pytest.raises(UsageError, match="at most 100 images, not 101"):
        check_n_images(range(101), "messages")


def test_markers_stand_alone() -> None:
    assert join_around([("a", False), ("b", False)], "\n") == "a\nb"
    assert join_around([("M", True), ("a", False), ("N", True), ("O", True), ("b", False)], "\n") == "MaNOb"
    assert join_around([("a", False), ("M", True), ("b", False), ("c", False)], "\n") == "aMb\nc"


def test_many_threads_get_one_object() -> None:
    data = saved(gradient(300, 300))
    got: list[images.Image] = []
    threads = [threading.Thread(target=lambda: got.append(load_image(data))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len(set(map(id, got))) == 1


def test_bytes_of_a_text() -> None:
    assert bytes_of_text("aGk=") == b"hi"
