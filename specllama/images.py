"""Decodes image files for prompts: what a user or a client sends becomes a file of plain pixels, which the
engine process reads. Bounds are checked by the header, before anything is decoded.

Knows nothing about projectors: images are neither scaled nor cut here. Pillow is imported when the first
image is decoded.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.client.protocol import Image
from specllama.errors import NotFoundError, ResourceError, UsageError, quoted
from specllama.regular_file import open_regular

if TYPE_CHECKING:
    import PIL.Image

MEDIA_MARKER = "<__media__>"
"""Stands for an image in a raw prompt, as in llama.cpp; where in the order of images says which one."""
LEFT_OUT = "[image left out: it cannot be read here]"
"""Stands for an image of an earlier turn where the model reads text only."""
MAX_IMAGES = 100  # of a request
MAX_BYTES = 32 * 1000 * 1000  # of a file
MAX_PIXELS = 20 * 1000 * 1000
MAX_ALL_PIXELS = 16 * MAX_PIXELS  # of all images of a request to a server
_MAX_SCANS = 100  # of a JPEG, each of which may cost the time of a whole image
_MAX_DECODED = 4 << 30  # bytes of all images that are decoded at once
_READ = {
    "PNG": "PngImagePlugin.PngImageFile",
    "JPEG": "JpegImagePlugin.JpegImageFile",
    "WebP": "WebPImagePlugin.WebPImageFile",
    "GIF": "GifImagePlugin.GifImageFile",
    "BMP": "BmpImagePlugin.BmpImageFile",
}
"""Formats to the classes of Pillow that read them. Not Image.open: it warns of sizes by its own bound, and
reads more formats than are tested here.
"""
_ALLOWED = "PNG, JPEG, WebP, GIF or BMP"
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", 0, "PNG"), (b"\xff\xd8\xff", 0, "JPEG"), (b"WEBP", 8, "WebP"),
    (b"GIF87a", 0, "GIF"), (b"GIF89a", 0, "GIF"), (b"BM", 0, "BMP"),
    (b"%PDF", 0, "PDF"), (b"ftyphei", 4, "HEIC"), (b"ftyphev", 4, "HEIC"), (b"ftypmif1", 4, "HEIC"),
    (b"ftypavif", 4, "AVIF"), (b"ftyp", 4, "video"), (b"II*\0", 0, "TIFF"), (b"MM\0*", 0, "TIFF"),
    (b"\xff\x0a", 0, "JPEG XL"), (b"\0\0\0\x0cJXL ", 0, "JPEG XL"),
)  # fmt: skip
_ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9", "GIF": b";"}
_decoding = threading.BoundedSemaphore(2)  # an image of 20 MP takes 200 MB meanwhile
_lock = threading.Lock()
_alive: weakref.WeakValueDictionary[bytes, Image] = weakref.WeakValueDictionary()  # by SHA-256 of their files
_sizes: dict[str, int] = {}  # bytes of the files of all that are alive
_PREFIX = "specllama-images-"  # of the folders with these files


def load_image(data: bytes, where: str = "", scope: str = "") -> Image:
    """The image that an image file's bytes hold; the same object as long as one of equal bytes and the same
    scope is alive. scope: of whom it is; images of others have another digest, whatever they show.

    Orientation by EXIF is applied, as browsers do. Of 16 bits the upper 8 count, and transparency is dropped,
    which leaves the colours that the file has behind it, both as llama-server does but for GIFs. Of an
    animation it is the first image. where: its name in messages, "" for none. Raises UsageError for what is
    no image of these formats, damaged or too large; ResourceError if there is no room for its pixels.
    """
    name = f"{where}: " if where else ""
    if len(data) > MAX_BYTES:
        raise _too_many_bytes(name)
    key = hashlib.sha256(scope.encode())
    key.update(data)
    with _lock:
        known = _alive.get(key.digest())
    if known is not None:
        return known
    pixels, size = _decoded(data, name)
    return _kept(key.digest(), pixels, size, scope)


def load_image_file(path: str | os.PathLike[str]) -> Image:
    """As load_image, from a file. Raises also what read_image_file does."""
    return load_image(read_image_file(path), quoted(os.fspath(path)))


def read_image_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes that load_image takes, and one more of a larger file. Raises NotFoundError, UsageError."""
    try:
        with open_regular(Path(path).expanduser()) as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "this is no path"
        problem = f"the image {quoted(os.fspath(path))} cannot be read: {why}"
        kind = NotFoundError if isinstance(error, FileNotFoundError) else UsageError
        raise kind(problem, "give the path of an image file") from None


def load_image_text(text: str, where: str = "", scope: str = "") -> Image:
    """As load_image, from a `data:` URL in base64, or from base64 alone, as JSON carries images. Raises
    UsageError also for other URLs, none of which is opened.
    """
    return load_image(bytes_of_text(text, where), where, scope)


def bytes_of_text(text: str, where: str = "") -> bytes:
    """The bytes of a `data:` URL in base64, or of base64 alone. Raises UsageError."""
    name = f"{where}: " if where else ""
    hint, text = "send the image as data:image/png;base64,…", text.strip()
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise UsageError(f"{name}the data: URL is not in base64", hint)
    elif "://" in text[:64] or text[:5].lower() == "file:":
        what = "files of the server are" if text[:5].lower() == "file:" else "images by their URL are"
        raise UsageError(f"{name}{what} not read here: {quoted(text)}", hint)
    if len(text) > MAX_BYTES * 3 // 2:
        raise _too_many_bytes(name)
    text = "".join(text.split()).translate({ord("-"): "+", ord("_"): "/"})  # of the form for URLs
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{name}the image is not valid base64: {quoted(text)}", hint) from None


def load_pil(image: PIL.Image.Image, where: str = "") -> Image:
    """As load_image, from an image of Pillow, as it is."""
    name = f"{where}: " if where else ""
    _check_size(image.size, name)
    with _decoding:
        try:
            pixels = _rgb(image.copy())
        except Exception:  # noqa: BLE001 - it may read its file only now
            hint = "its file is damaged, cut off or closed; call its load() where it was opened"
            raise UsageError(f"{name}this image of Pillow cannot be read", hint) from None
    key = hashlib.sha256(f"{image.size}".encode() + pixels).digest()
    return _kept(key, pixels, image.size)


def load_array(array: Any, where: str = "") -> Image:
    """As load_image, from an array of numpy: uint8, (height, width) for grey, (height, width, 3) for RGB or
    (height, width, 4) for RGBA.
    """
    from PIL import Image as pillow

    name = f"{where}: " if where else ""
    if array.dtype != "uint8" or (array.ndim != 2 and array.shape[2:] not in ((3,), (4,))):
        problem = f"{name}an array of {array.dtype} of the shape {array.shape} is no image"
        raise UsageError(problem, "give uint8 of the shape (height, width), or of (height, width, 3 or 4)")
    _check_size((array.shape[1], array.shape[0]), name)
    return load_pil(pillow.fromarray(array), where)


def check_n_images(images: Sized, where: str = "") -> None:
    """Raises UsageError for more images than a request may have."""
    if len(images) > MAX_IMAGES:
        name = f"{where}: " if where else ""
        problem = f"{name}a request may have at most {MAX_IMAGES} images, not {len(images)}"
        raise UsageError(problem, "leave out those that no longer matter")


def join_around(parts: list[tuple[str, bool]], between: str) -> str:
    """Texts and markers in one text, as llama-server joins them: nothing is put before or after a marker.
    parts: (text, whether it is a marker). between: what stands between two texts.
    """
    joined, after_marker = "", True
    for text, is_marker in parts:
        joined += text if is_marker or after_marker else between + text
        after_marker = is_marker
    return joined


def _decoded(data: bytes, name: str) -> tuple[bytes, tuple[int, int]]:
    """The pixels of an image file, three bytes each, and its width and height."""
    form = next((form for text, at, form in _SIGNATURES if data.startswith(text, at)), "")
    if form not in _READ:
        if b"<svg" in data[:1024]:
            form = "SVG"
        what = f"a file of type {form}" if form else "not an image" if data else "empty"
        raise UsageError(f"{name}this is {what}", f"send an image as {_ALLOWED}")
    if form == "JPEG" and data.count(b"\xff\xda") > _MAX_SCANS:
        raise UsageError(f"{name}the image has more than {_MAX_SCANS} scans", "save it as an ordinary JPEG")
    with _decoding:
        try:
            image = _opened(form, data)
            _check_size(image.size, name)
            pixels, size = _upright(image)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - damaged files raise anything in Pillow
            raise _damaged(error, name, form, data) from None
    return pixels, size


def _opened(form: str, data: bytes) -> PIL.Image.Image:
    import importlib

    module, _, kind = _READ[form].partition(".")
    opened: Any = getattr(importlib.import_module(f"PIL.{module}"), kind)(io.BytesIO(data))
    image: PIL.Image.Image = opened
    return image


def _upright(image: PIL.Image.Image) -> tuple[bytes, tuple[int, int]]:
    from PIL import Image as pillow
    from PIL import ImageOps

    image.load()
    pixels, size = _rgb(image), image.size
    try:
        turn = image.getexif().get(0x0112, 1)
    except Exception:  # noqa: BLE001 - what else is wrong in EXIF does not matter
        turn = 1
    if turn in range(2, 9):
        plain = pillow.frombytes("RGB", size, pixels)
        plain.getexif()[0x0112] = turn
        turned = ImageOps.exif_transpose(plain)
        pixels, size = turned.tobytes(), turned.size
    return pixels, size


def _rgb(image: PIL.Image.Image) -> bytes:
    from PIL import Image as pillow

    image.load()
    image.info.pop("transparency", None)  # of a palette or one colour: dropped, as alpha is
    if image.mode.startswith("I;16"):  # Pillow cuts these off at 255
        upper = 0 if image.mode == "I;16B" else 1
        image = pillow.frombytes("L", image.size, image.tobytes()[upper::2])
    return image.convert("RGB").tobytes()


def _check_size(size: tuple[int, int], name: str) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        problem = f"{name}the image has {width} × {height} pixels, more than {MAX_PIXELS // 1000**2} million"
        raise UsageError(problem, "make it smaller; models see a few million pixels at most")
    if not width * height:
        raise UsageError(f"{name}the image has no pixels", "send another one")


def _damaged(error: Exception, name: str, form: str, data: bytes) -> UsageError:
    """What is wrong with a file, not in Pillow's words."""
    if isinstance(error, MemoryError):
        return UsageError(f"{name}there is not enough memory to decode the image", "make it smaller")
    if form in _ENDS:
        is_whole = data.rstrip(b"\0\r\n").endswith(_ENDS[form])
    else:
        n = data[2:6] if form == "BMP" else data[4:8]
        is_whole = len(data) >= int.from_bytes(n, "little") + (0 if form == "BMP" else 8)
    if not is_whole:
        return UsageError(f"{name}the image is cut off: the {form} file has no end", "send the whole file")
    problem = f"{name}the image is damaged, or a kind of {form} that is not read here"
    return UsageError(problem, "save it again, as PNG or JPEG")


def _too_many_bytes(name: str) -> UsageError:
    problem = f"{name}the image file has more than {MAX_BYTES // 1000**2} MB"
    return UsageError(problem, "make it smaller, or save it as JPEG")


def _kept(key: bytes, pixels: bytes, size: tuple[int, int], scope: str = "") -> Image:
    """The image of these pixels in a temporary file, which the object keeps. key: of its source."""
    digest = hashlib.sha256(scope.encode() + b"%d %d\n" % size + pixels).hexdigest()
    with _lock:
        if (known := _alive.get(key)) is not None:
            return known
        if sum(list(_sizes.values())) + len(pixels) > _MAX_DECODED:
            problem = "the images of all requests together take up too much room"
            raise ResourceError(problem, "wait until other requests have begun, or send smaller images")
        image = Image(digest, *size, _written(pixels))
        _sizes[image.path] = len(pixels)
        weakref.finalize(image, _remove, image.path, os.getpid())
        _alive[key] = image
    return image


def _written(pixels: bytes) -> str:
    path = ""
    try:
        place = os.getpid(), tempfile.gettempdir()
        if not os.path.isdir(_folder(*place)):  # what tidies folders of temporary files has removed it
            _folder.cache_clear()
        fd, path = tempfile.mkstemp(dir=_folder(*place))
        with open(fd, "wb") as file:
            file.write(pixels)
    except OSError as error:
        if path:
            Path(path).unlink(missing_ok=True)
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        problem = f"an image cannot be written to {tempfile.gettempdir()}: {why}"
        raise ResourceError(problem, "make room there, or set TMPDIR to another folder") from None
    return path


def remove_left() -> None:
    """Remove the folders of images that killed processes have left: those without a lock."""
    with contextlib.suppress(OSError):
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if (number := _locked(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(number)


@functools.cache
def _folder(pid: int, parent: str) -> str:
    """The folder of this process's images, which is locked as long as it runs. Raises OSError."""
    remove_left()
    for _ in range(3):  # another process may take a new folder for one that was left
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        if _locked(folder) is not None:
            break
    atexit.register(_remove_folder, folder, pid)
    return folder


def _remove_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork
        shutil.rmtree(folder, ignore_errors=True)


def _locked(folder: str | os.PathLike[str]) -> int | None:
    """A descriptor that holds the lock of a folder, None for one that another process has."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number
        except OSError:
            os.close(number)
    return None


def _remove(path: str, pid: int) -> None:
    """Remove an image's file, unless this is a process forked from the one that wrote it. Takes no lock: it
    runs wherever the last reference goes away.
    """
    if os.getpid() == pid:
        Path(path).unlink(missing_ok=True)
        _sizes.pop(path, None)
