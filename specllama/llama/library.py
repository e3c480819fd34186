"""The seam: llama.cpp behind two classes, Model and Context. The only file that imports llama_cpp.

Uses the low-level functions only. What llama.cpp would abort the process on is checked here and raised
instead; what it answers with codes and null pointers becomes one of our errors. Knows nothing about drafts,
requests or text.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specllama.config.load import ALL_LAYERS, AUTO, MAX_THREADS, ModelSettings, reserved_outputs
from specllama.core.interfaces import BatchRow, DecodeError, NoRoomError
from specllama.errors import EngineError, IntegrityError, ResourceError, UsageError
from specllama.models.memory.cpu import physical_cores

TESTED = "0.3.36"
INSTALL = f'CMAKE_ARGS="-DGGML_RPC=ON -DGGML_RPC_RDMA=OFF" pip install llama-cpp-python=={TESTED}'

try:
    _found = metadata.version("llama-cpp-python")
except metadata.PackageNotFoundError:
    raise EngineError("llama-cpp-python is not installed", f"install it: {INSTALL}") from None
if _found != TESTED:
    raise EngineError(
        f"llama-cpp-python {_found} is installed, specllama needs {TESTED}", f"install it: {INSTALL}"
    )
# OpenMP threads spin at every barrier, by default for milliseconds: where another program keeps a core busy,
# a decode then takes hundreds of times as long. With this bound it takes three times as long.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
try:
    import llama_cpp as llama
    from llama_cpp.llama_cpp import _lib
except (ImportError, RuntimeError, FileNotFoundError, OSError) as error:
    raise EngineError(f"llama-cpp-python cannot be loaded: {error}", f"install it again: {INSTALL}") from None

# ggml's functions, found through llama.cpp, which is linked to them: llama_cpp._ggml loads a second copy of
# the library, whose list of devices llama.cpp never sees.
ggml: Any = _lib
_GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
_FLASH = {"auto": -1, "off": 0, "on": 1}
_SPLIT = {"none": 0, "layer": 1, "row": 2, "tensor": 3}
_ROPE = {"none": 0, "linear": 1, "yarn": 2}
_MMAP, _MLOCK, _MMAP_MLOCK, _NO_MMAP = 1, 2, 3, 0
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_CONTROL = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN  # parsed in text where asked to
_GPU_TYPES = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU
_FLOATS = ("0", "1", "32")  # llama_ftype: F32, F16, BF16
_AMX_ROWS = 32  # of two tiles; with Q8_0 33 rows take 2.8 times as long as 32, and 65 2.3 times as 64
_UNLIMITED = 1 << 30
# The address alone, without an object around it. It waits for the decode, as llama_synchronize does.
_get_logits = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("llama_get_logits", _lib))

for _name, _result, _args in (
    ("ggml_backend_dev_count", ctypes.c_size_t, []),
    ("ggml_backend_dev_get", ctypes.c_void_p, [ctypes.c_size_t]),
    ("ggml_backend_dev_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_description", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_type", ctypes.c_int, [ctypes.c_void_p]),
    ("ggml_backend_dev_memory", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]),
    ("ggml_backend_dev_buffer_type", ctypes.c_void_p, [ctypes.c_void_p]),
    ("ggml_backend_dev_backend_reg", ctypes.c_void_p, [ctypes.c_void_p]),
    ("ggml_backend_buft_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_backend_reg_count", ctypes.c_size_t, []),
    ("ggml_backend_reg_get", ctypes.c_void_p, [ctypes.c_size_t]),
    ("ggml_backend_reg_name", ctypes.c_char_p, [ctypes.c_void_p]),
    ("ggml_version", ctypes.c_char_p, []),
):
    _function = getattr(ggml, _name)
    _function.restype, _function.argtypes = _result, _args


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama-cpp-python does not declare."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class _Log:
    """llama.cpp's log: its last lines are kept, since they say why a load failed; `verbose` shows them
    all.
    """

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=200)
        self.verbose = False
        self._level = 0
        self.callback = llama.llama_log_callback(self._take)

    def _take(self, level: int, text: bytes, _user: object) -> None:
        line = text.decode("utf-8", "replace")
        if self.verbose:
            sys.stderr.write(line)
        self._level = level if level != 5 else self._level  # 5 continues the line before
        if self._level in (3, 4) and line.strip(" .\n"):
            self.lines.append(line.strip())

    def reason(self) -> str:
        """The last lines of warnings and errors, in one."""
        return "; ".join(list(self.lines)[-3:]) or "llama.cpp gave no reason"


_log = _Log()
llama.llama_log_set(_log.callback, ctypes.c_void_p(0))
llama.llama_backend_init()


def show_log(verbose: bool) -> None:
    """Write llama.cpp's log to stderr, or stop doing so."""
    _log.verbose = verbose


@dataclass(frozen=True, slots=True)
class Device:
    """A device that this build of llama.cpp can use. remote: of an RPC worker, which passes for a GPU
    whatever it is; its description is where the worker is. free, total: bytes of its memory.
    """

    name: str
    description: str
    gpu: bool
    remote: bool
    free: int
    total: int
    handle: int


def devices() -> list[Device]:
    """All devices of the build, the CPU among them, and those of the RPC workers that were added."""
    found = []
    for i in range(ggml.ggml_backend_dev_count()):
        dev = ggml.ggml_backend_dev_get(i)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        ggml.ggml_backend_dev_memory(dev, ctypes.byref(free), ctypes.byref(total))
        name = ggml.ggml_backend_dev_name(dev).decode()
        about = ggml.ggml_backend_dev_description(dev).decode()
        gpu = ggml.ggml_backend_dev_type(dev) in _GPU_TYPES
        remote = ggml.ggml_backend_reg_name(ggml.ggml_backend_dev_backend_reg(dev)) == b"RPC"
        found.append(Device(name, about, gpu, remote, free.value, total.value, dev))
    return found


def build_info() -> dict[str, Any]:
    """Versions, registered backends, what llama.cpp says of the system, and what the build supports."""
    registered = (ggml.ggml_backend_reg_get(i) for i in range(ggml.ggml_backend_reg_count()))
    return {
        "llama_cpp_python": _found,
        "llama_cpp": llama.llama_version().decode(),
        "ggml": ggml.ggml_version().decode(),
        "backends": [ggml.ggml_backend_reg_name(reg).decode() for reg in registered],
        "system_info": llama.llama_print_system_info().decode(),
        "gpu_offload": bool(llama.llama_supports_gpu_offload()),
        "mmap": bool(llama.llama_supports_mmap()),
        "mlock": bool(llama.llama_supports_mlock()),
        "rpc": bool(llama.llama_supports_rpc()),
    }


def compiled() -> str:
    """What tells one compilation of llama.cpp from another: the checksums of its libraries that were recorded
    when it was installed, shortened; their sizes and times where there is no record.
    """
    files = metadata.distribution("llama-cpp-python").files or []
    kept = [f"{file.name} {file.hash.value}" for file in files if file.hash and file.parent.name == "lib"]
    if not kept:
        here = os.path.dirname(_lib._name)
        found = [entry for entry in os.scandir(here) if entry.is_file()] if os.path.isdir(here) else []
        kept = [f"{one.name} {one.stat().st_size} {one.stat().st_mtime_ns}" for one in found]
    return hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()[:16]


def _buffer_type(name: str) -> int:
    known = {}
    for device in devices():
        buft = ggml.ggml_backend_dev_buffer_type(device.handle)
        known[ggml.ggml_backend_buft_name(buft).decode()] = buft
    if name not in known:
        raise UsageError(f"no buffer type {name!r} for --override-tensor", f"there are: {', '.join(known)}")
    return int(known[name])


class Model:
    """Weights and vocabulary of one GGUF file.

    progress: called with the share loaded, 0 to 1. vocab_only: no weights. Raises UsageError for settings
    that this build or model cannot honour, IntegrityError where llama.cpp refuses the file, ResourceError
    without memory.
    """

    def __init__(
        self,
        settings: ModelSettings,
        progress: Callable[[float], None] | None = None,
        vocab_only: bool = False,
    ) -> None:
        self.settings = settings
        self._kept: list[object] = []  # what the C side points to
        params = self._params(settings, progress, vocab_only)
        _log.lines.clear()
        self.handle = llama.llama_model_load_from_file(os.fsencode(settings.path), params)
        if not self.handle:
            raise _load_error(settings.path)
        self.vocab = llama.llama_model_get_vocab(self.handle)
        self.n_vocab = llama.llama_vocab_n_tokens(self.vocab)
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        if not vocab_only:
            self._refuse_unfit()
            self._lora = [self._load_lora(path, scale) for path, scale in settings.lora]

    def _params(
        self, s: ModelSettings, progress: Callable[[float], None] | None, vocab_only: bool
    ) -> llama.llama_model_params:
        params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.load_mode = {
            (True, False): _MMAP,
            (True, True): _MMAP_MLOCK,
            (False, True): _MLOCK,
            (False, False): _NO_MMAP,
        }[s.use_mmap, s.use_mlock]
        params.n_gpu_layers = -1 if s.n_gpu_layers in (AUTO, ALL_LAYERS) else s.n_gpu_layers
        if s.split_mode == "tensor" and not any(d.gpu for d in devices()):
            raise UsageError("-sm tensor needs a GPU that this build of llama.cpp can use")
        params.split_mode, params.main_gpu = _SPLIT[s.split_mode], s.main_gpu
        if s.devices:
            params.devices = self._keep(self._device_list(s.devices))
        if s.tensor_split:
            n = llama.llama_max_devices()
            if len(s.tensor_split) > n:
                raise UsageError(f"tensor_split has {len(s.tensor_split)} parts, llama.cpp takes {n} at most")
            params.tensor_split = (ctypes.c_float * n)(*s.tensor_split)
            self._kept.append(params.tensor_split)
        overrides = [*s.override_tensor, *_experts_on_cpu(s.n_cpu_moe)]
        if overrides:
            params.tensor_buft_overrides = self._keep(self._override_list(overrides))
        if progress is not None:
            report = progress
            callback = llama.llama_progress_callback(lambda share, _user: report(share) or True)
            params.progress_callback = callback
            self._kept.append(callback)
        return params

    def _keep(self, array: ctypes.Array[Any]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)

    def _device_list(self, names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
        known = {d.name: d.handle for d in devices()}
        wanted = [] if tuple(names) == ("none",) else list(names)
        for name in wanted:
            if name not in known:
                raise UsageError(
                    f"no device {name!r} in this build of llama.cpp", f"there are: {', '.join(known)}"
                )
        return (ctypes.c_void_p * (len(wanted) + 1))(*[known[n] for n in wanted], None)

    def _override_list(self, overrides: Sequence[tuple[str, str]]) -> ctypes.Array[Any]:
        array = (_TensorOverride * (len(overrides) + 1))()
        for i, (pattern, buft) in enumerate(overrides):
            try:
                re.compile(pattern)
            except re.error as error:
                raise UsageError(
                    f"--override-tensor pattern {pattern!r} is not a regular expression: {error}"
                ) from None
            array[i].pattern, array[i].buft = pattern.encode(), _buffer_type(buft)
        return array

    def _refuse_unfit(self) -> None:
        if llama.llama_model_has_encoder(self.handle) or not llama.llama_model_has_decoder(self.handle):
            raise UsageError(f"{self.settings.path} is an encoder model; specllama runs decoder-only models")
        if llama.llama_model_is_diffusion(self.handle):
            raise UsageError(
                f"{self.settings.path} is a diffusion model; specllama runs left-to-right models"
            )

    def _load_lora(self, path: str, scale: float) -> tuple[object, float]:
        adapter = llama.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise IntegrityError(
                f"the LoRA adapter {path} does not fit {self.settings.path}: {_log.reason()}"
            )
        return adapter, scale

    def apply_lora(self, ctx: object) -> None:
        """Switch the adapters of the settings on for a context."""
        if self._lora:
            adapters = (llama.llama_adapter_lora_p_ctypes * len(self._lora))(*[a for a, _ in self._lora])
            scales = (ctypes.c_float * len(self._lora))(*[s for _, s in self._lora])
            llama.llama_set_adapters_lora(ctx, adapters, len(self._lora), scales)

    @property
    def n_ctx_train(self) -> int:
        return int(llama.llama_model_n_ctx_train(self.handle))

    @property
    def n_params(self) -> int:
        return int(llama.llama_model_n_params(self.handle))

    @property
    def n_layer(self) -> int:
        return int(llama.llama_model_n_layer(self.handle))

    @property
    def n_swa(self) -> int:
        return int(llama.llama_model_n_swa(self.handle))

    @functools.cached_property
    def has_state(self) -> bool:
        """Whether (part of) the memory is a recurrent state, which cannot be cut token by token."""
        return bool(llama.llama_model_is_recurrent(self.handle) or llama.llama_model_is_hybrid(self.handle))

    @property
    def bos_id(self) -> int:
        """The token that a text begins with, -1 without one."""
        return int(llama.llama_vocab_bos(self.vocab))

    @property
    def eos_id(self) -> int:
        return int(llama.llama_vocab_eos(self.vocab))

    @property
    def adds_bos(self) -> bool:
        return bool(llama.llama_vocab_get_add_bos(self.vocab))

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return frozenset(i for i in range(self.n_vocab) if llama.llama_vocab_is_eog(self.vocab, i))

    @property
    def control_texts(self) -> list[str]:
        """Texts of the control tokens, which never appear in what a user writes; the unknown token is one."""
        texts = (
            llama.llama_vocab_get_text(self.vocab, i)
            for i in range(self.n_vocab)
            if llama.llama_vocab_get_attr(self.vocab, i) & _CONTROL
        )
        return [t.decode("utf-8", "replace") for t in texts if t]

    @property
    def suppressed(self) -> list[int]:
        """Tokens that the model's own file forbids (tokenizer.ggml.suppress_tokens)."""
        n = ctypes.c_int32(0)
        found = llama.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(n))
        return [int(found[i]) for i in range(n.value)] if found else []

    def token_text(self, token: int) -> str:
        """The text of a token as the vocabulary spells it; "" for -1."""
        return (
            (llama.llama_vocab_get_text(self.vocab, token) or b"").decode("utf-8", "replace")
            if token >= 0
            else ""
        )

    @property
    def uses_amx(self) -> bool:
        """Whether its matrices are multiplied by AMX's integer tiles."""
        here = b"AMX_INT8 = 1" in llama.llama_print_system_info() and self.settings.n_gpu_layers == 0
        return here and self.metadata("general.file_type") not in _FLOATS

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text, None where it has no such key."""
        buffer = ctypes.create_string_buffer(1 << 10)
        n = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """Ids of a text; unpaired surrogates become U+FFFD. Raises UsageError where llama.cpp cannot."""
        data = text.encode("utf-8", "replace" if _has_surrogates(text) else "strict")
        if not data and not add_special:
            return []
        room = len(data) + 16
        for _ in range(2):
            ids = (llama.llama_token * room)()
            n = llama.llama_tokenize(self.vocab, data, len(data), ids, room, add_special, parse_special)
            if n >= 0:
                return list(ids[:n])
            room = -n
        raise UsageError(f"llama.cpp cannot tokenise this text of {len(data)} bytes")

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for; none for a control token."""
        known = self._pieces[token]
        if known is None:
            known = self._pieces[token] = self._piece(token)
        return known

    def _piece(self, token: int) -> bytes:
        room = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(room)
            n = llama.llama_token_to_piece(self.vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n
        return b""

    def close(self) -> None:
        """Free the weights. Contexts must be closed before."""
        if self.handle:
            llama.llama_model_free(self.handle)
            self.handle = None


def _has_surrogates(text: str) -> bool:
    return any(0xD800 <= ord(c) <= 0xDFFF for c in text) if not text.isascii() else False


def _experts_on_cpu(n: int) -> Iterator[tuple[str, str]]:
    if n == -1:
        yield _EXPERTS, "CPU"
    for layer in range(max(n, 0)):
        yield rf"blk\.{layer}" + _EXPERTS, "CPU"


def _load_error(path: str) -> Exception:
    reason = _log.reason()
    if re.search(r"alloc|out of memory|not enough", reason, re.IGNORECASE):
        return ResourceError(
            f"not enough memory to load {path}: {reason}", "use a smaller quant, or fewer -ngl layers"
        )
    return IntegrityError(
        f"llama.cpp cannot load {path}: {reason}", "get the file again, or another quant of it"
    )


def _begin(memory: mmap.mmap) -> Any:
    """A pointer to it; an array of its size would be a type of its own for every size."""
    return ctypes.byref(ctypes.c_uint8.from_buffer(memory))


class LlamaContext:
    """A KV cache over a model for `n_seq_max` sequences; implements core.ports.Context.

    n_outputs_max: most rows with logits in one decode. n_rs_seq: recurrent states kept per sequence for going
    back; llama.cpp keeps none for most recurrent models, then cuts need a checkpoint. Raises ResourceError
    without memory.
    """

    def __init__(
        self, model: Model, n_ctx: int, n_seq_max: int = 1, n_outputs_max: int = 64, n_rs_seq: int = 0
    ) -> None:
        self.model, s = model, model.settings
        params = self._params(s, n_ctx, n_seq_max, n_outputs_max, n_rs_seq if model.has_state else 0)
        _log.lines.clear()
        self.handle = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            raise ResourceError(
                f"llama.cpp cannot make a context of {n_ctx} tokens for {s.path}: {_log.reason()}",
                f"try a smaller context, -c {max(512, n_ctx // 2)}",
            )
        self.memory = llama.llama_get_memory(self.handle)
        if not self.memory:
            raise UsageError(f"{s.path} has no memory for generation; it is not a text model")
        model.apply_lora(self.handle)
        self.n_ctx, self.n_seq_max = int(llama.llama_n_ctx(self.handle)), n_seq_max
        self.n_batch, self.n_vocab = int(llama.llama_n_batch(self.handle)), model.n_vocab
        self.n_outputs_max = min(n_outputs_max, self.n_batch)
        self.row_multiple = _AMX_ROWS if model.uses_amx else 1
        self.n_threads, self.n_threads_batch = params.n_threads, params.n_threads_batch
        n_rs_seq = int(llama.llama_n_rs_seq(self.handle))
        self.max_rollback = n_rs_seq if model.has_state and n_rs_seq else _UNLIMITED
        self.cuts_need_checkpoint = model.has_state and not n_rs_seq
        self.decode_seconds = 0.0  # of llama_decode and llama_synchronize alone
        self._n_swa = model.n_swa
        self._last_rows = [0] * n_seq_max  # of a sequence in its last decode; states go back no further
        self._marks: dict[int, tuple[int, ctypes.Array[ctypes.c_uint8]]] = {}
        self._address, self._rows = 0, np.zeros((0, self.n_vocab), np.float32)
        self._make_batch()

    def _params(
        self, s: ModelSettings, n_ctx: int, n_seq_max: int, n_outputs_max: int, n_rs_seq: int
    ) -> llama.llama_context_params:
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = n_ctx, min(s.n_batch, n_ctx), min(s.n_ubatch, s.n_batch)
        outputs = reserved_outputs(n_outputs_max)
        p.n_batch = max(p.n_batch, outputs)
        p.n_seq_max, p.kv_unified, p.swa_full, p.n_rs_seq = n_seq_max, True, s.swa_full, n_rs_seq
        p.n_outputs_max = p.n_outputs_max_per_seq = outputs
        p.n_threads = s.n_threads or physical_cores()
        p.n_threads_batch = s.n_threads_batch or p.n_threads
        p.type_k, p.type_v = _GGML_TYPES[s.cache_type_k], _GGML_TYPES[s.cache_type_v]
        p.flash_attn_type = _FLASH[s.flash_attn]
        if s.rope_scaling is not None:
            p.rope_scaling_type = _ROPE[s.rope_scaling]
        if s.rope_scale is not None:
            p.rope_freq_scale = 1.0 / s.rope_scale
        for name in (
            "rope_freq_base",
            "rope_freq_scale",
            "yarn_orig_ctx",
            "yarn_ext_factor",
            "yarn_attn_factor",
            "yarn_beta_slow",
            "yarn_beta_fast",
        ):
            value = getattr(s, name)
            if value is not None:
                setattr(p, name, value)
        return p

    def _make_batch(self) -> None:
        """One batch of arrays of our own, filled anew for every decode."""
        n = self.n_batch
        self._token, self._pos = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._n_seq, self._seq, self._output = (
            np.ones(n, np.int32),
            np.zeros(n, np.int32),
            np.zeros(n, np.int8),
        )
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(n, dtype=np.uintp)
        self._batch = llama.llama_batch(
            n_tokens=0,
            token=self._token.ctypes.data_as(ctypes.POINTER(llama.llama_token)),
            embd=None,
            pos=self._pos.ctypes.data_as(ctypes.POINTER(llama.llama_pos)),
            n_seq_id=self._n_seq.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)),
            seq_id=ctypes.cast(
                self._seq_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(llama.llama_seq_id))
            ),
            logits=self._output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def set_threads(self, n_threads: int, n_threads_batch: int) -> None:
        """Use so many threads from the next decode on, for one row and for more."""
        for n in (n_threads, n_threads_batch):
            if not 1 <= n <= MAX_THREADS:
                raise ValueError(f"a context uses 1 to {MAX_THREADS} threads, not {n}")
        llama.llama_set_n_threads(self.handle, n_threads, n_threads_batch)
        self.n_threads, self.n_threads_batch = n_threads, n_threads_batch

    def decode(self, batch: Sequence[BatchRow]) -> NDArray[np.float32]:
        n = len(batch)
        if not 0 < n <= self.n_batch:
            raise ValueError(f"a decode takes 1 to {self.n_batch} tokens, not {n}")
        if n == 1:  # the draft model decodes token by token; all that is done with arrays takes longer
            ((token, position, seq_id, output),) = batch
            n_outputs, seq_ids = int(output), (seq_id,)
            self._check(token, token, seq_id, seq_id, n_outputs)
            self._token[0], self._pos[0], self._seq[0], self._output[0] = token, position, seq_id, output
        else:
            tokens, positions, seq_ids, outputs = zip(*batch, strict=True)
            n_outputs = sum(outputs)
            self._check(min(tokens), max(tokens), min(seq_ids), max(seq_ids), n_outputs)
            self._token[:n], self._pos[:n], self._seq[:n], self._output[:n] = (
                tokens, positions, seq_ids, outputs
            )  # fmt: skip
        self._batch.n_tokens = n
        started = time.perf_counter()
        result = llama.llama_decode(self.handle, self._batch)
        if result == 1:
            raise NoRoomError
        if result != 0:
            raise DecodeError(f"llama_decode answered {result}: {_log.reason()}")
        address = _get_logits(self.handle) if n_outputs else llama.llama_synchronize(self.handle)
        self.decode_seconds += time.perf_counter() - started
        if self.model.has_state:
            for seq_id in set(seq_ids):
                self._last_rows[seq_id] = seq_ids.count(seq_id)
        if not n_outputs:
            return np.zeros((0, self.n_vocab), np.float32)
        if not address:
            raise DecodeError("llama.cpp gave no logits")
        if address != self._address:  # of what llama.cpp has allocated, perhaps for fewer rows than the view
            self._address, size = address, self.n_outputs_max * self.n_vocab
            flat = (ctypes.c_float * size).from_address(address)
            self._rows = np.ndarray((self.n_outputs_max, self.n_vocab), np.float32, flat)
        return self._rows[:n_outputs]

    def _check(self, low: int, high: int, first: int, last: int, n_outputs: int) -> None:
        """What llama.cpp would end the process or fail the whole batch for: least and largest token and
        seq_id, and rows of logits. Raises ValueError.
        """
        if n_outputs > self.n_outputs_max:
            raise ValueError(f"a decode gives {self.n_outputs_max} rows of logits at most, not {n_outputs}")
        if low < 0 or high >= self.n_vocab:
            raise ValueError(f"a token id outside of the vocabulary of {self.n_vocab}")
        if first < 0 or last >= self.n_seq_max:
            raise ValueError(f"a seq_id outside of the {self.n_seq_max} sequences")

    def n_past(self, seq_id: int) -> int:
        return int(llama.llama_memory_seq_pos_max(self.memory, seq_id)) + 1

    def checkpoint(self, seq_id: int) -> None:
        size = llama.llama_state_seq_get_size_ext(self.handle, seq_id, _PARTIAL)
        state = (ctypes.c_uint8 * size)()
        if llama.llama_state_seq_get_data_ext(self.handle, state, size, seq_id, _PARTIAL) != size:
            raise DecodeError("llama.cpp cannot save the state of the sequence")
        self._marks[seq_id] = (self.n_past(seq_id), state)

    def truncate(self, seq_id: int, n_past: int) -> int:
        have = self.n_past(seq_id)
        if n_past >= have:
            return have
        if n_past <= 0:
            self._clear(seq_id)
            return 0
        removable = self._can_remove(seq_id, have - n_past)
        if removable and llama.llama_memory_seq_rm(self.memory, seq_id, n_past, -1):
            # A sliding window never refuses, but rows that have left it are gone.
            first = llama.llama_memory_seq_pos_min(self.memory, seq_id)
            if self.n_past(seq_id) == n_past and (
                self.model.has_state or first <= max(0, n_past - self._n_swa)
            ):
                return n_past
        return self._go_back(seq_id, n_past)

    def _can_remove(self, seq_id: int, n_back: int) -> bool:
        """Whether the last tokens can be taken out: from states only those that the last decode went
        through.
        """
        if not self.model.has_state:
            return True
        possible = min(self.max_rollback, self._last_rows[seq_id] - 1)
        self._last_rows[seq_id] = 0
        return not self.cuts_need_checkpoint and n_back <= possible

    def _go_back(self, seq_id: int, n_past: int) -> int:
        """To the checkpoint if it lies at or before n_past, else to nothing."""
        at, state = self._marks.get(seq_id, (0, None))
        if state is None or at > n_past:
            self._clear(seq_id)
            return 0
        done = llama.llama_state_seq_set_data_ext(self.handle, state, len(state), seq_id, _PARTIAL)
        if (
            done == len(state)
            and llama.llama_memory_seq_rm(self.memory, seq_id, at, -1)
            and self.n_past(seq_id) == at
        ):
            return at
        self._clear(seq_id)
        return 0

    def _clear(self, seq_id: int) -> None:
        llama.llama_memory_seq_rm(self.memory, seq_id, -1, -1)
        self._marks.pop(seq_id, None)

    def copy(self, src: int, dst: int, n_past: int) -> int:
        if self.model.has_state and n_past != self.n_past(src):
            return 0
        self._clear(dst)
        self._last_rows[dst] = 0
        llama.llama_memory_seq_cp(self.memory, src, dst, 0, -1 if self.model.has_state else n_past)
        first = llama.llama_memory_seq_pos_min(self.memory, dst)
        if not self.model.has_state and first > max(0, n_past - self._n_swa):
            self._clear(dst)  # rows that have left a sliding window
        return self.n_past(dst)

    def size(self, seq_id: int) -> int:
        if self.model.has_state or self._n_swa:  # of a window, the rows that a cut needs would not be saved
            return 0
        return int(llama.llama_state_seq_get_size(self.handle, seq_id))

    def save(self, seq_id: int) -> mmap.mmap | None:
        size = self.size(seq_id)
        try:
            saved = mmap.mmap(-1, size)  # not from the heap, which would keep it
        except (OSError, ValueError):
            return None
        written = llama.llama_state_seq_get_data(self.handle, _begin(saved), size, seq_id)
        return saved if written == size else None

    def load(self, seq_id: int, saved: mmap.mmap) -> int:
        self._clear(seq_id)
        if not llama.llama_state_seq_set_data(self.handle, _begin(saved), len(saved), seq_id):
            self._clear(seq_id)
        return self.n_past(seq_id)

    def close(self) -> None:
        """Free the cache."""
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = None
