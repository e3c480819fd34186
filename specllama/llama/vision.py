"""The encoder of a model that sees: libmtmd, compiled at the first use of a projector, and the images that it
turns into rows for the model. The only user of libmtmd; knows nothing about prompts.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.store import cache_dir, locked
from specllama.core.image_rows import ImageEmbeddings
from specllama.errors import (
    EngineError,
    IntegrityError,
    NotSupportedError,
    ResourceError,
    UsageError,
    option,
)
from specllama.gguf.check import check_projector
from specllama.gguf.header import identity, read_header
from specllama.llama import vision_build
from specllama.llama.kernel_build import Unusable, is_current, unwritable
from specllama.llama.library import LlamaLog, ggml, llama, log
from specllama.llama.model import FLASH_ATTN, LlamaModel
from specllama.llama.vision_build import OBJECT, VARIABLE, Report

_TEXT, _IMAGE = 0, 1  # mtmd_input_chunk_type
_MARKER = b"<__media__>"
_BY_PLACE = frozenset(("deepseek4v",))  # projectors whose rows depend on where in a prompt the image is
_REPORT_SECONDS = 0.5
_SIDES = range(512, 8193, 512)  # of images that are tried for the most rows, in pixels
_MOST_SIDE = 46_000  # pixels: clip_image_size::area
_MOST_SIZES = 1000  # of images whose pieces are kept
_NO_MEMORY = re.compile(
    r"failed to allocate|unable to allocate|bad_alloc|out of memory|not enough memory", re.I
)
_OTHER_MODEL = re.compile(r"mismatch between text model \(n_embd = (\d+)\) and mmproj \(n_embd = (\d+)\)")
# Of what is logged: the file, which messages name already, and places in llama.cpp's source.
_NOISE = re.compile(
    r"clip_init: failed to load model '.*?': |; mtmd_init_from_file: error: Failed to load CLIP model.*"
    r"|(?<!\S)\S+/ggml\S*:\d+: "
)
_log = LlamaLog()  # libmtmd's; llama.cpp's own may be that of a decode in another thread


# libmtmd itself.


class _Params(ctypes.Structure):
    """mtmd_context_params."""

    _fields_ = (
        ("use_gpu", ctypes.c_bool),
        ("device", ctypes.c_void_p),
        ("print_timings", ctypes.c_bool),
        ("n_threads", ctypes.c_int),
        ("image_marker", ctypes.c_char_p),
        ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("image_min_tokens", ctypes.c_int),
        ("image_max_tokens", ctypes.c_int),
        ("cb_eval", ctypes.c_void_p),
        ("cb_eval_user_data", ctypes.c_void_p),
        ("batch_max_tokens", ctypes.c_int32),
        ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
    )


class _Text(ctypes.Structure):
    """mtmd_input_text."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("text_len", ctypes.c_size_t),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    )


class _Position(ctypes.Structure):
    """mtmd_decoder_pos."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in "txyz")


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_FUNCTIONS: Mapping[str, tuple[Any, tuple[Any, ...]]] = {  # result and arguments
    "mtmd_context_params_default": (_Params, ()),
    "mtmd_init_from_file": (_POINTER, (ctypes.c_char_p, _POINTER, _Params)),
    "mtmd_free": (None, (_POINTER,)),
    "mtmd_log_set": (None, (_POINTER, _POINTER)),
    "mtmd_support_vision": (ctypes.c_bool, (_POINTER,)),
    "mtmd_decode_use_mrope": (ctypes.c_bool, (_POINTER,)),
    "mtmd_decode_use_non_causal": (ctypes.c_bool, (_POINTER, _POINTER)),
    "mtmd_bitmap_init": (_POINTER, (ctypes.c_uint32, ctypes.c_uint32, _POINTER)),
    "mtmd_bitmap_free": (None, (_POINTER,)),
    "mtmd_input_chunks_init": (_POINTER, ()),
    "mtmd_input_chunks_free": (None, (_POINTER,)),
    "mtmd_input_chunks_size": (_SIZE, (_POINTER,)),
    "mtmd_input_chunks_get": (_POINTER, (_POINTER, _SIZE)),
    "mtmd_input_chunk_get_type": (ctypes.c_int, (_POINTER,)),
    "mtmd_input_chunk_get_tokens_text": (
        ctypes.POINTER(ctypes.c_int32),
        (_POINTER, ctypes.POINTER(_SIZE)),
    ),
    "mtmd_input_chunk_get_tokens_image": (_POINTER, (_POINTER,)),
    "mtmd_input_chunk_get_n_tokens": (_SIZE, (_POINTER,)),
    "mtmd_input_chunk_get_n_pos": (ctypes.c_int32, (_POINTER,)),
    "mtmd_image_tokens_get_decoder_pos": (_Position, (_POINTER, ctypes.c_int32, _SIZE)),
    "mtmd_tokenize": (ctypes.c_int32, (_POINTER, _POINTER, ctypes.POINTER(_Text), _POINTER, _SIZE)),
    "mtmd_encode_chunk": (ctypes.c_int32, (_POINTER, _POINTER)),
    "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), (_POINTER,)),
}


_GUARDED: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "specllama_open": (_POINTER, (ctypes.c_char_p, _POINTER, ctypes.POINTER(_Params))),
    "specllama_tokenize": _FUNCTIONS["mtmd_tokenize"],
    "specllama_encode": _FUNCTIONS["mtmd_encode_chunk"],
}


def _cached() -> Path:
    return cache_dir() / "vision" / f"{vision_build.key()}.so"


def _ready() -> Path | None:
    """The library of this installation, else an object that was compiled before, None without."""
    folder = Path(ggml._name).parent
    for path in (folder / "libmtmd.so", folder / "libmtmd.dylib"):
        if path.is_file():
            return path
    ours = (path for path in (OBJECT, _cached()) if path.is_file())
    return next((path for path in ours if is_current(path, vision_build.key())), None)


@functools.cache
def _loaded(path: Path) -> Any:
    """The library with its functions declared. Raises Unusable."""
    try:
        # It is not linked to libllama, whose functions are visible to it from here on.
        ctypes.CDLL(ggml._name, mode=ctypes.RTLD_GLOBAL)
        library: Any = ctypes.CDLL(str(path))
        library.guards = hasattr(library, "specllama_open")  # it is ours, whose functions never throw
        for name, (result, arguments) in {**_FUNCTIONS, **(_GUARDED if library.guards else {})}.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        library.tokenize = library.specllama_tokenize if library.guards else library.mtmd_tokenize
        library.encode = library.specllama_encode if library.guards else library.mtmd_encode_chunk
    except (OSError, AttributeError) as error:
        raise Unusable(f"{path} cannot be loaded: {error}") from None
    library.mtmd_log_set(ctypes.cast(_log.callback, _POINTER), None)
    return library


def load_library(report: Report = lambda *_: None, environ: Mapping[str, str] = os.environ) -> Any:
    """libmtmd, compiled first where this machine has none. report: called every half second meanwhile. Raises
    EngineError.
    """
    try:
        if (path := _ready()) is None:
            path = _compiled(report, environ)
        return _loaded(path)
    except Unusable as error:
        hint = f"name a folder with llama.cpp's source, unpacked, in {VARIABLE}"
        if re.search("compiler|CXX", str(error)):
            hint = "install a C++ compiler"
        raise EngineError(
            f"images need llama.cpp's libmtmd, which is not there and cannot be compiled: {error}",
            f"{hint}, or use the model without images: {option('mmproj', 'none')}",
        ) from None


def _compiled(report: Report, environ: Mapping[str, str]) -> Path:
    """The object in the cache, compiled here or by another process that has begun. Raises Unusable."""
    to, done, stages = _cached(), threading.Event(), [(vision_build.COMPILING, 0.0)]

    def report_it() -> None:
        while not done.wait(_REPORT_SECONDS):
            report(*stages[-1])

    thread = threading.Thread(target=report_it, daemon=True)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with locked(to.with_suffix(".lock"), lambda: report(*stages[-1])):
            thread.start()
            if not is_current(to, vision_build.key()):
                vision_build.compile_object(to, environ, lambda *stage: stages.append(stage))
    except OSError as error:
        raise unwritable(to.parent, error) from None
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
    return to


# The encoder.


class VisionEncoder:
    """The projector of a model. path: its GGUF. n_threads: of an encode. use_gpu: where there is one; device:
    which (ggml_backend_dev_t), None for the first. min_tokens, max_tokens: rows of an image, 0 for the
    projector's own limits, which some have. flash_attn: as in ModelSettings. report: see `load_library`.

    key: identifies the projector's file and its settings. mrope: positions of images are M-RoPE's. n_most:
    the most rows that must be computed at once, 0 where each sees only those before it.

    Raises NotFoundError, UsageError (the projector of another model, or no projector), IntegrityError (a file
    that llama.cpp refuses), ResourceError and EngineError.
    """

    def __init__(
        self,
        path: str,
        model: LlamaModel,
        *,
        n_threads: int,
        use_gpu: bool,
        device: int | None = None,
        flash_attn: str = "auto",
        min_tokens: int = 0,
        max_tokens: int = 0,
        report: Report = lambda *_: None,
    ) -> None:
        self._path, self._handle = path, None
        header = read_header(path)
        check_projector(header)
        if header.text("clip.projector_type") in _BY_PLACE:
            raise NotSupportedError(f"{path}: specllama cannot use projectors of this kind (DeepSeek 4)")
        self._mtmd = load_library(report)
        self._n_embd = int(llama.llama_model_n_embd_inp(model.handle))
        self._model = model  # in use as long as this is
        params = self._mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = use_gpu, n_threads, False
        params.device = device
        params.media_marker, params.flash_attn_type = _MARKER, FLASH_ATTN[flash_attn]
        params.image_min_tokens, params.image_max_tokens = min_tokens or -1, max_tokens or -1
        params.warmup = True  # builds a graph, without computing it: an error appears here
        self._handle = self._open(params)
        if not self._mtmd.mtmd_support_vision(self._handle):
            self.close()
            raise UsageError(f"{path} encodes sound, not images", "name the projector for images")
        self.mrope = bool(self._mtmd.mtmd_decode_use_mrope(self._handle))
        self._causal = not self._mtmd.mtmd_decode_use_non_causal(self._handle, None)
        facts = (identity(header), vision_build.CHECKSUM, use_gpu, flash_attn, min_tokens, max_tokens)
        self.key = hashlib.sha256(repr(facts).encode()).digest()
        self._sizes: dict[tuple[int, int], list[list[int] | int]] = {}
        self.n_most = 0
        try:
            self.pieces(_SIDES[0], _SIDES[0])
        except UsageError:
            self.close()
            raise
        if not self._causal:
            self.n_most = self._most_rows()

    def _open(self, params: _Params) -> int:
        path = os.fsencode(self._path)
        _log.clear()
        _log.verbose = log.verbose
        log.clear()
        if self._mtmd.guards:
            handle = self._mtmd.specllama_open(path, self._model.handle, ctypes.byref(params))
        else:
            handle = self._mtmd.mtmd_init_from_file(path, self._model.handle, params)
        if handle:
            return int(handle)
        reason = _NOISE.sub("", _log.reason())
        if match := _OTHER_MODEL.search(reason):
            name = self._model.settings.path
            raise self._of_another_model(f"its rows have {match[2]} values, those of {name} {match[1]}")
        if _NO_MEMORY.search(f"{reason} {log.reason()}"):
            raise ResourceError(
                f"not enough memory to load the projector {self._path}: {reason}",
                "use one with smaller weights, or a smaller context",
            )
        hint = (
            "update specllama" if "unknown projector type" in reason else "get the file again, or another one"
        )
        raise IntegrityError(f"llama.cpp cannot load the projector {self._path}: {reason}", hint)

    def _of_another_model(self, why: str) -> UsageError:
        return UsageError(
            f"{self._path} is the projector of another model: {why}",
            f"name the one that was published with the model: {option('mmproj', 'FILE')}",
        )

    def _most_rows(self) -> int:
        """The most rows of a part, over images of usual shapes: a line of pixels may have more."""
        counts = set[int]()
        for width, height in ((w, h) for w in _SIDES for h in _SIDES):
            with contextlib.suppress(UsageError):
                counts.update(part for part in self.pieces(width, height) if isinstance(part, int))
        return max(counts, default=0)

    def pieces(self, width: int, height: int) -> list[list[int] | int]:
        """What an image of this size is in a prompt, in order: ids of text (begin and end marks), or the
        number of rows of a part. Raises UsageError for a size that the projector refuses.
        """
        if known := self._sizes.get((width, height)):
            return known
        if not (0 < width <= _MOST_SIDE and 0 < height <= _MOST_SIDE):
            raise self._refused(width, height, f"a side has 1 to {_MOST_SIDE} pixels")
        with self._chunks(None, width, height) as chunks:
            made = [
                self._ids(chunk) if self._mtmd.mtmd_input_chunk_get_type(chunk) == _TEXT
                else int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
                for chunk in chunks
            ]  # fmt: skip
        if 0 in made:
            raise self._refused(width, height, "no row is left of it")
        if self.n_most and max(part for part in made if isinstance(part, int)) > self.n_most:
            raise self._refused(width, height, f"it has more than {self.n_most} rows, which see each other")
        marks = [token for ids in made if isinstance(ids, list) for token in ids]
        if any(token not in range(self._model.n_vocab) for token in marks):
            name = self._model.settings.path
            raise self._of_another_model(f"{name} has no tokens for what it puts around images")
        if len(self._sizes) >= _MOST_SIZES:
            self._sizes.clear()
        self._sizes[width, height] = made
        return made

    def encode(
        self, rgb: bytes | memoryview, width: int, height: int, wanted: Callable[[], bool] = lambda: True
    ) -> list[ImageEmbeddings]:
        """One for each part, in order. rgb: width * height * 3 bytes. wanted: asked before each part; if it
        says no, those before are returned. By one thread at a time, during decodes
        of the model in another. HunyuanVL numbers the images of a prompt in their positions; here each is the
        first. Raises EngineError.
        """
        if len(rgb) != width * height * 3:
            raise ValueError(f"{len(rgb)} bytes for an image of {width} x {height} pixels")
        encoded = list[ImageEmbeddings]()
        with self._chunks(rgb, width, height) as chunks:
            for chunk in chunks:
                if not wanted():
                    return encoded
                if self._mtmd.mtmd_input_chunk_get_type(chunk) == _IMAGE:
                    encoded.append(self._encode(chunk))
        if [len(part.rows) for part in encoded] != [
            n for n in self.pieces(width, height) if isinstance(n, int)
        ]:
            raise EngineError("libmtmd has made another number of rows of an image than it said before")
        return encoded

    def _encode(self, chunk: int) -> ImageEmbeddings:
        if self._mtmd.encode(self._handle, chunk) != 0:
            raise EngineError(f"llama.cpp cannot encode an image: {_NOISE.sub('', _log.reason())}")
        n = int(self._mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        made = self._mtmd.mtmd_get_output_embd(self._handle)
        rows = np.ctypeslib.as_array(made, (n, self._n_embd)).copy()
        n_positions = int(self._mtmd.mtmd_input_chunk_get_n_pos(chunk))
        positions = self._positions(chunk, n) if self.mrope else None
        return ImageEmbeddings(rows, positions, n_positions, self._causal)

    def _positions(self, chunk: int, n: int) -> Callable[[int], NDArray[np.int32]]:
        """Some count from the first row's, others from 0: those at 0 and at 1 say which."""
        tokens = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        at = self._mtmd.mtmd_image_tokens_get_decoder_pos
        zero, one = (
            np.array([(p.t, p.y, p.x, p.z) for p in (at(tokens, first, i) for i in range(n))], np.int32).T
            for first in (0, 1)
        )
        steps = one - zero
        return lambda first: np.ascontiguousarray(zero + first * steps)

    @contextlib.contextmanager
    def _chunks(self, rgb: bytes | memoryview | None, width: int, height: int) -> Iterator[list[int]]:
        """The chunks of a prompt that is an image alone; those of a longer one are the same. rgb: None for an
        image without contents, which libmtmd only counts.
        """
        data = None if rgb is None else np.frombuffer(rgb, np.uint8).ctypes.data
        bitmap = self._mtmd.mtmd_bitmap_init(width, height, data)
        chunks = self._mtmd.mtmd_input_chunks_init()
        try:
            _log.clear()
            bitmaps = (_POINTER * 1)(bitmap)
            text = _Text(_MARKER, len(_MARKER), False, True)
            if self._mtmd.tokenize(self._handle, chunks, ctypes.byref(text), bitmaps, 1) != 0:
                raise self._refused(width, height, _log.reason())
            n = self._mtmd.mtmd_input_chunks_size(chunks)
            yield [self._mtmd.mtmd_input_chunks_get(chunks, i) for i in range(n)]
        finally:
            self._mtmd.mtmd_input_chunks_free(chunks)
            self._mtmd.mtmd_bitmap_free(bitmap)

    def _refused(self, width: int, height: int, reason: str) -> UsageError:
        what = f"an image of {width} x {height} pixels cannot be used with {self._path}"
        return UsageError(f"{what}: {reason}", "use another size or shape")

    def _ids(self, chunk: int) -> list[int]:
        n = _SIZE(0)
        ids = self._mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return [int(ids[i]) for i in range(n.value)]

    def close(self) -> None:
        """Free the projector."""
        if self._handle:
            self._mtmd.mtmd_free(self._handle)
            self._handle = None
