"""The images of prompts: which ids stand for them, and their encoding in a thread of its own; the projector
that encodes them.
"""

from __future__ import annotations

import hashlib
import mmap
import re
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specllama.client import protocol
from specllama.client.tune_messages import Loading
from specllama.config.load import LoadSettings
from specllama.core.image_rows import ImageEmbeddings, image_runs, placeholder_ids
from specllama.errors import EngineError, SpecllamaError, UsageError, option
from specllama.gguf.header import Header, read_model
from specllama.gguf.projector import Projector, check_fits, read_projector
from specllama.llama.library import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import physical_cores
from specllama.models.memory.plan import projector_device
from specllama.regular_file import open_regular
from specllama.worker.draft import gpus

if TYPE_CHECKING:
    from specllama.llama.vision import VisionEncoder  # loads libmtmd

Tokenize = Callable[[str, bool, bool], list[int]]  # from (text, add_special, parse_special)
_MARKER = re.compile(r"<__media_[0-9a-f]{32}__>")
_MOST_KEPT = 64 << 20  # bytes of rows of images that no prompt has
SHOWN = "<__media__>"  # for a marker, in texts for users


class ImageEncoder:
    """Encodes images with the projector of a loaded model, one after the other. wake: called in the thread of
    the encoder after each of them.
    """

    def __init__(self, encoder: VisionEncoder, wake: Callable[[], None]) -> None:
        self.encoder, self._wake = encoder, wake
        self._known: weakref.WeakValueDictionary[str, EncodedImage] = weakref.WeakValueDictionary()
        self._kept = dict[EncodedImage, int]()  # the last ones that were encoded, with their bytes
        self._thread = ThreadPoolExecutor(1, "specllama-images")

    def image(self, image: protocol.Image) -> EncodedImage:
        """The image, encoded at most once while a prompt has it, and for some time after that. Raises
        EngineError without its file.
        """
        known = self._known.get(image.digest)
        if known is None:
            self._known[image.digest] = known = EncodedImage(image, self)
        return known

    def begin(self, image: EncodedImage) -> Future[list[ImageEmbeddings]]:
        """Encode the image as soon as those before it are, unless nobody wants it any more."""
        wanted = weakref.ref(image)

        def encode() -> list[ImageEmbeddings]:
            try:
                parts = self._encoded(wanted)
                if (one := wanted()) is not None:
                    self._keep(one, sum(part.rows.nbytes for part in parts))
                return parts
            except SpecllamaError:
                raise
            except Exception as error:
                traceback.print_exc()
                raise EngineError(f"{type(error).__name__} while an image was encoded: {error}") from error
            finally:
                self._wake()

        return self._thread.submit(encode)

    def _encoded(self, wanted: weakref.ref[EncodedImage]) -> list[ImageEmbeddings]:
        """The rows of an image, fewer if nobody wants it any more."""
        one = wanted()
        if one is None:
            return []
        pixels, width, height = one.pixels, one.image.width, one.image.height
        one.pixels = None
        del one  # or it would be wanted here
        assert pixels is not None
        with pixels, memoryview(pixels) as rgb:
            return self.encoder.encode(rgb, width, height, lambda: wanted() is not None)

    def _keep(self, image: EncodedImage, n_bytes: int) -> None:
        """Keep what an image was encoded to: it may be in another prompt, after other text."""
        self._kept[image] = n_bytes
        while len(self._kept) > 1 and sum(self._kept.values()) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]


class EncodedImage:
    """An image, and what it is encoded to. Raises EngineError for a file that is not that of an image."""

    def __init__(self, image: protocol.Image, thread: ImageEncoder) -> None:
        self.image, self._thread = image, thread
        self._future: Future[list[ImageEmbeddings]] | None = None
        size = image.width * image.height * 3
        try:
            with open_regular(image.path) as file:  # which may be removed from now on
                self.pixels: mmap.mmap | None = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot read the image: {error}") from None
        if len(self.pixels) != size:
            raise EngineError(f"the image has {len(self.pixels)} bytes, not {size}")

    def begin(self) -> Future[list[ImageEmbeddings]]:
        if self._future is None:
            self._future = self._thread.begin(self)
        return self._future


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """A part of an image in a prompt, the ids from begin to end - 1; core/image_rows.py has the methods."""

    begin: int
    end: int
    image: EncodedImage
    index: int

    def encoded(self) -> ImageEmbeddings | None:
        future = self.image.begin()
        if not future.done():
            return None
        parts = future.result()
        n = len(parts[self.index].rows)
        if n != self.end - self.begin:
            raise EngineError(f"a part of the image has {n} rows, not {self.end - self.begin} as expected")
        return parts[self.index]


class PromptImages:
    """The images of one prompt. encoder: None for a model that sees none. Raises UsageError."""

    def __init__(
        self, images: Sequence[protocol.Image], tokenize: Tokenize, encoder: ImageEncoder | None
    ) -> None:
        if images and encoder is None:
            raise no_projector()
        self._images, self._tokenize, self._encoder = images, tokenize, encoder
        self._ids: dict[str, list[int]] = {}
        self._parts: dict[tuple[int, ...], tuple[protocol.Image, int]] = {}
        if encoder is not None:
            self._ids = {image.marker: list(self._ids_of(image, encoder.encoder)) for image in images}

    def _ids_of(self, image: protocol.Image, encoder: VisionEncoder) -> Iterator[int]:
        """The ids of an image, with those of the text that the model has around it."""
        n_parts = 0
        for piece in encoder.pieces(image.width, image.height):
            if isinstance(piece, list):
                yield from piece
                continue
            key = b"\0".join((encoder.key, image.digest.encode(), str(n_parts).encode()))
            run = placeholder_ids(hashlib.sha256(key).digest(), piece)
            self._parts[tuple(run)] = image, n_parts
            n_parts += 1
            yield from run

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """The ids of a text, those of images in place of their markers."""
        if not self._ids:
            return self._tokenize(text, add_special, parse_special)
        ids, done = list[int](), 0
        for match in _MARKER.finditer(text):
            if (image := self._ids.get(match.group())) is not None:
                if match.start() > done or (add_special and not done):
                    ids += self._tokenize(text[done : match.start()], add_special and not done, parse_special)
                ids, done = ids + image, match.end()
        if done < len(text) or not done:
            ids += self._tokenize(text[done:], add_special and not done, parse_special)
        return ids

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether all images among these ids are those of the prompt."""
        return all(tuple(ids[begin:end]) in self._parts for begin, end in image_runs(ids))

    def rows(self, ids: Sequence[int]) -> list[ImagePart]:
        """The images among the ids of the prompt. Raises UsageError where one is missing, EngineError."""
        if not self._images or self._encoder is None:
            return []
        known: dict[str, EncodedImage] = {}  # so that one that occurs twice stays
        parts = []
        for begin, end in image_runs(ids):
            image, index = self._parts[tuple(ids[begin:end])]
            if image.digest not in known:
                known[image.digest] = self._encoder.image(image)
            parts.append(ImagePart(begin, end, known[image.digest], index))
        for i, image in enumerate(self._images):
            if image.digest not in known:
                problem = f"image {i + 1} is not in the prompt that the chat template makes of the messages"
                raise UsageError(problem, f"use another one ({option('chat_template')}), or fewer images")
        return parts


def no_projector() -> UsageError:
    """The error for images where the model was loaded without a projector."""
    hint = f"load it with {option('mmproj', 'FILE')}: the mmproj-*.gguf that belongs to it"
    return UsageError("the model was loaded without a projector, so it cannot see images", hint)


def shown(text: str) -> str:
    """A text with llama.cpp's marker in place of those of images."""
    return _MARKER.sub(SHOWN, text)


# The projector of a load: checked before the models are loaded, and opened once the target is.


def checked_projector(settings: LoadSettings, target: Header, send: protocol.Send) -> Projector | None:
    """The projector of the settings, None without one, and for one that was looked for and cannot be used,
    which a notice says. Raises UsageError, IntegrityError and NotFoundError for one that was named.
    """
    if not settings.projector:
        return None
    try:
        projector = read_projector(read_model(settings.projector), settings.image_max_tokens)
        check_fits(projector, target)
    except SpecllamaError as error:
        _leave_out(settings, error, send)
        return None
    return projector


def open_encoder(
    settings: LoadSettings, projector: Projector | None, model: LlamaModel, send: protocol.Send
) -> VisionEncoder | None:
    """The encoder of images, None without a projector, and for one that was looked for and cannot be opened,
    which a notice says. model: the target. Raises what VisionEncoder raises.
    """
    if projector is None:
        return None
    from specllama.llama.vision import VisionEncoder

    t, device = settings.target, projector_device(settings, gpus())
    try:
        encoder = VisionEncoder(
            settings.projector,
            model,
            n_threads=t.n_threads_batch or t.n_threads or physical_cores(),
            use_gpu=device is not None,
            device=next((d.handle for d in devices() if device and d.name == device.name), None),
            flash_attn=t.flash_attn,
            min_tokens=settings.image_min_tokens,
            max_tokens=settings.image_max_tokens,
            report=lambda stage, share: send(Loading(stage, share)),
        )
        if encoder.n_most > t.n_ubatch:
            encoder.close()
            problem = f"{settings.projector} needs {encoder.n_most} rows computed at once, not {t.n_ubatch}"
            raise UsageError(problem, f"give {option('n_ubatch', encoder.n_most)}")
    except SpecllamaError as error:
        _leave_out(settings, error, send)
        return None
    return encoder


def _leave_out(settings: LoadSettings, error: SpecllamaError, send: protocol.Send) -> None:
    """Note that a projector that was looked for is not used; raise the error of one that was named."""
    if not settings.mmproj_found:
        raise error.prefixed(f"{option('mmproj')}: ") from None
    send(protocol.Notice(f"images are not read: {error.args[0]}"))
