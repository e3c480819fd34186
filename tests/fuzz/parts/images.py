"""Image files, and the headers of projectors."""

from __future__ import annotations

import io
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specllama.errors import GGUFError, ResourceError, UsageError
from specllama.gguf.header import read_header, read_source
from tests.fuzz import gguf_pieces, mutate
from tests.fuzz.gguf_pieces import Pieces, TensorPiece
from tests.fuzz.parts.headers import BytesSource
from tests.support import tiny_mmproj, tinygguf

_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"eXIf", b"iCCP", b"zTXt", b"VP8X", b"ANMF", b"ALPH")
_MARKERS = (b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xda", b"\xff\xdd", b"\xff\xe1\0\x10Exif\0\0")
_SIZES = (0, 1, 7, 255, 4000, 5000, 20_000, 65_535, 1 << 30, (1 << 32) - 1)


class Images:
    """Files of all formats, with bytes changed."""

    name, seconds, n_bytes, batch = "images", 8.0, 400 << 20, 500

    def set_up(self) -> None:
        from specllama.images import load_image

        self._files = list(_files())
        for data in self._files:  # imports what reads them
            load_image(data)

    def make(self, rng: random.Random) -> bytes:
        data = bytearray(rng.choice(self._files))
        if rng.random() < 0.3:  # a number, such as a width
            at, form = rng.randrange(min(len(data), 64)), rng.choice(("<H", ">H", "<I", ">I"))
            n = rng.choice(_SIZES) % (1 << 8 * struct.calcsize(form))
            data[at : at + struct.calcsize(form)] = struct.pack(form, n)
        return mutate.mutated(rng, bytes(data), _CHUNKS + _MARKERS)

    def run(self, data: bytes) -> str:
        from specllama.images import MAX_PIXELS, load_image

        try:
            image = load_image(data, "image 1")
        except (UsageError, ResourceError) as error:
            assert error.hint
            assert error.message.isprintable(), error.message[:500]
            return "refused"
        assert 0 < image.width * image.height <= MAX_PIXELS
        assert Path(image.path).stat().st_size == image.width * image.height * 3
        return "decoded"

    def close(self) -> None:
        pass


def _files() -> Iterator[bytes]:
    from PIL import Image

    image = Image.new("RGB", (40, 30))
    image.putdata([(x * 6, y * 8, x * y % 256) for y in range(30) for x in range(40)])
    exif = Image.Exif()
    exif[0x0112] = 6
    made: list[tuple[Any, str, dict[str, Any]]] = [
        (image, "PNG", {}), (image.convert("RGBA"), "PNG", {}),
        (image.quantize(9), "PNG", {"transparency": 1}),
        (image.convert("L").convert("I;16"), "PNG", {"exif": exif}), (image.convert("1"), "PNG", {}),
        (image, "JPEG", {"exif": exif}), (image, "JPEG", {"progressive": True}),
        (image.convert("L"), "JPEG", {}),
        (image.convert("CMYK"), "JPEG", {}), (image, "WebP", {"lossless": True}),
        (image.convert("RGBA"), "WebP", {"exif": exif}), (image, "BMP", {}), (image.quantize(9), "BMP", {}),
        (image, "GIF", {}), (image, "GIF", {"save_all": True, "append_images": [image.rotate(90)]}),
        (image, "WebP", {"save_all": True, "append_images": [image.rotate(90)]}),
    ]  # fmt: skip
    for one, form, options in made:
        buffer = io.BytesIO()
        one.save(buffer, form, **options)
        yield buffer.getvalue()


class Projectors:
    """What is read of a projector before it is loaded, and whether it is that of a model."""

    name, seconds, n_bytes, batch = "projectors", 2.0, 100 << 20, 500

    def set_up(self) -> None:
        with tempfile.TemporaryDirectory(prefix="specllama-fuzz-") as folder:
            kinds = (tiny_mmproj.gemma3, tiny_mmproj.internvl, tiny_mmproj.idefics3, tiny_mmproj.qwen2vl)
            self._pieces = [_pieces(make(Path(folder, f"{i}.gguf"))) for i, make in enumerate(kinds)]
            self._target = read_header(tinygguf.llama(Path(folder, "m.gguf")))

    def make(self, rng: random.Random) -> bytes:
        pieces = gguf_pieces.mutated(rng, rng.choice(self._pieces))
        return pieces.bytes() + bytes(pieces.n_data + 4096)

    def run(self, data: bytes) -> str:
        from specllama.gguf.projector import check_fits, read_projector
        from specllama.models.memory.cost import image_memory

        try:
            projector = read_projector(read_source(BytesSource(data)))
            image_memory(projector, "auto", False)
            check_fits(projector, self._target)
        except (GGUFError, UsageError) as error:
            assert error.hint
            assert error.message.isprintable(), error.message[:500]
            return "refused"
        return "read"

    def close(self) -> None:
        pass


def _pieces(path: Path) -> Pieces:
    """A projector, with weights of zeros."""
    header = read_header(path)
    tensors, end = [], 0
    for t in header.tensors:
        tensors.append(TensorPiece(t.name.encode(), t.shape, 0, end))
        end += -(-t.n_elements * 4 // 32) * 32
    return Pieces(gguf_pieces.read(path), tuple(tensors), end)
