"""The weights and the vocabulary of a GGUF file, loaded by llama.cpp; parameters of models and contexts."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from specllama.config.load import ALL_LAYERS, AUTO, ModelSettings, reserved_outputs
from specllama.core.sampling.dry import MAX_BYTES, Breakers, Pieces
from specllama.errors import IntegrityError, ResourceError, UsageError, option
from specllama.llama.batches import CELLS_MULTIPLE, MORE_THAN_STATES
from specllama.llama.kernels import processor_flags
from specllama.llama.library import KERNELS, buffer_type, devices, llama, log
from specllama.models.memory.available import physical_cores
from specllama.models.memory.cost import tensor_overrides
from specllama.text.grammar import with_large_stack

_GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}  # llama_flash_attn_type
_ROPE_SCALING = {"none": 0, "linear": 1, "yarn": 2}  # llama_rope_scaling_type


def context_params(
    s: ModelSettings, n_ctx: int, n_seq_max: int, n_outputs_max: int, n_rs_seq: int
) -> llama.llama_context_params:
    """llama.cpp's parameters for a context; see `LlamaContext`."""
    p = llama.llama_context_default_params()
    p.n_ctx = -(-n_ctx // CELLS_MULTIPLE) * CELLS_MULTIPLE
    p.n_batch, p.n_ubatch = min(s.n_batch, p.n_ctx), min(s.n_ubatch, s.n_batch)
    outputs = reserved_outputs(n_outputs_max)
    n_rs_seq = min(n_rs_seq, p.n_ctx - MORE_THAN_STATES)
    least = max(n_rs_seq + MORE_THAN_STATES, outputs) if n_rs_seq else 1
    p.n_batch, p.n_ubatch = max(p.n_batch, outputs, least), max(p.n_ubatch, least)
    p.n_seq_max, p.kv_unified, p.swa_full, p.n_rs_seq = n_seq_max, True, s.swa_full is not False, n_rs_seq
    p.n_outputs_max = p.n_outputs_max_per_seq = outputs
    p.n_threads = s.n_threads or physical_cores()
    p.n_threads_batch = s.n_threads_batch or p.n_threads
    p.type_k, p.type_v = _GGML_TYPES[s.cache_type_k], _GGML_TYPES[s.cache_type_v]
    p.flash_attn_type = FLASH_ATTN[s.flash_attn]
    if s.rope_scaling is not None:
        p.rope_scaling_type = _ROPE_SCALING[s.rope_scaling]
    if s.rope_scale is not None:
        p.rope_freq_scale = 1.0 / s.rope_scale
    yarn = ("orig_ctx", "ext_factor", "attn_factor", "beta_slow", "beta_fast")
    for name in ("rope_freq_base", "rope_freq_scale", *(f"yarn_{name}" for name in yarn)):
        value = getattr(s, name)
        if value is not None:
            setattr(p, name, value)
    return p


class NativeContext:
    """A llama_context, which `close` frees. memory: its caches, None without."""

    handle: Any = None
    memory: Any = None

    def open(self, model: LlamaModel, params: llama.llama_context_params, n_ctx: int = 0) -> None:
        """n_ctx: that was asked for, 0 for a head's. Raises ResourceError if memory runs out."""
        log.clear()
        self.handle = llama.llama_init_from_model(model.handle, params)
        if not self.handle:
            what = f"of {n_ctx} tokens for {model.settings.path}" if n_ctx else "for the head"
            hint = f"try a smaller context, {option('n_ctx', max(512, n_ctx // 2))}" if n_ctx else ""
            raise ResourceError(f"llama.cpp cannot make a context {what}: {log.reason()}", hint)
        self.memory = llama.llama_get_memory(self.handle)

    def close(self) -> None:
        """Free the caches."""
        if self.handle:
            llama.llama_free(self.handle)
            self.handle = None


_SPLIT = {"none": 0, "layer": 1, "row": 2, "tensor": 3}  # llama_split_mode
# llama_load_mode, by (use_mmap, use_mlock)
_LOAD_MODE = {(False, False): 0, (True, False): 1, (False, True): 2, (True, True): 3}


class _TensorOverride(ctypes.Structure):
    """llama_model_tensor_buft_override, which llama-cpp-python does not declare."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class ModelParams:
    """params: for llama_model_load_from_file; valid as long as this object, which holds what they point to.

    progress: called with the fraction loaded, 0 to 1. vocab_only, ids_only: as of `LlamaModel`. Raises
    UsageError for settings that this build does not support.
    """

    def __init__(
        self,
        s: ModelSettings,
        progress: Callable[[float], None] | None = None,
        vocab_only: bool = False,
        ids_only: tuple[str, int] | None = None,
    ) -> None:
        self._kept: list[object] = []  # objects that llama.cpp keeps pointers to
        self.params = params = llama.llama_model_default_params()
        params.vocab_only = vocab_only
        params.load_mode = _LOAD_MODE[s.use_mmap, s.use_mlock]
        params.n_gpu_layers = -1 if s.n_gpu_layers in (AUTO, ALL_LAYERS) else s.n_gpu_layers
        if s.split_mode == "tensor" and not any(d.gpu for d in devices()):
            raise UsageError(
                f"{option('split_mode', 'tensor')} needs a GPU that this build of llama.cpp can use"
            )
        params.split_mode, params.main_gpu = _SPLIT[s.split_mode], s.main_gpu
        if s.devices:
            params.devices = self._keep(_device_list(s.devices))
        if s.tensor_split:
            n = llama.llama_max_devices()
            if len(s.tensor_split) > n:
                raise UsageError(
                    f"tensor_split has {len(s.tensor_split)} parts, llama.cpp accepts at most {n}"
                )
            params.tensor_split = (ctypes.c_float * n)(*s.tensor_split)
            self._kept.append(params.tensor_split)
        if overrides := tensor_overrides(s):
            params.tensor_buft_overrides = self._keep(_override_list(overrides))
        if ids_only is not None:
            params.kv_overrides = array = _no_vocabulary(*ids_only)
            self._kept.append(array)
        if progress is not None:
            report = progress
            callback = llama.llama_progress_callback(lambda share, _user: report(share) or True)
            params.progress_callback = callback
            self._kept.append(callback)

    def _keep(self, array: ctypes.Array[Any]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)


def _device_list(names: Sequence[str]) -> ctypes.Array[ctypes.c_void_p]:
    known = {d.name: d.handle for d in devices()}
    wanted = [] if tuple(names) == ("none",) else list(names)
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"no device {name!r} in this build of llama.cpp", f"there are: {', '.join(known)}"
            )
    return (ctypes.c_void_p * (len(wanted) + 1))(*[known[n] for n in wanted], None)


def _no_vocabulary(architecture: str, n_vocab: int) -> ctypes.Array[Any]:
    array: ctypes.Array[Any] = (llama.llama_model_kv_override * 3)()  # up to one without a key
    array[0].key, array[0].tag = b"tokenizer.ggml.model", llama.LLAMA_KV_OVERRIDE_TYPE_STR
    array[0].value.val_str = b"none"
    array[1].key, array[1].tag = f"{architecture}.vocab_size".encode(), llama.LLAMA_KV_OVERRIDE_TYPE_INT
    array[1].value.val_i64 = n_vocab
    return array


def _override_list(overrides: Sequence[tuple[str, str]]) -> ctypes.Array[Any]:
    array = (_TensorOverride * (len(overrides) + 1))()
    for i, (pattern, buft) in enumerate(overrides):
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f": pattern {pattern!r} is not a regular expression: {error}", option="override_tensor"
            ) from None
        array[i].pattern, array[i].buft = pattern.encode(), buffer_type(buft)
    return array


# How deep llama.cpp's split of a text into words recurses, and the limit on it.
#
# Before BPE, llama.cpp splits a text by the regular expressions of the vocabulary's pre-tokenizer. Some have
# hand-written splitters (unicode_regex_split_custom in its unicode.cpp); the others run in std::regex, which
# recurses once per character of a match in GNU's library and ends the process when the stack is full. A match
# ends where the kind of character changes, so the longest run of one kind bounds the recursion. Measured for
# all pre-tokenizers: 270 to 560 bytes of stack per character.


_SAFE = frozenset(  # only hand-written splitters, or expressions that match a few characters
    {
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5", "starcoder", "refact",
        "command-r", "smollm", "codeshell", "exaone", "exaone4", "minerva-7b", "mellum", "mellum2", "gpt-2",
        "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "modern-bert",
        "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "trillion", "granite-docling",
        "stablelm2", "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open",
        "qwen35", "chameleon", "kimi-k2", "grok-2", "laguna", "gemma4", "granite-embed-multi-311m",
        "sarvam-moe",
    }
)  # fmt: skip
_MAX_RUN = 100_000  # characters; two such runs may follow each other on the stack of text/grammar.py
_SLOW: Mapping[str, int] = {"superbpe": 5_000, "jais-2": 20_000}  # quadratic in the length of a run
_SHORT_RUN = 1_000  # characters that fit into the stack of any thread

# Characters beyond ASCII count as any kind; in the scanned bytes they are question marks.
_ANY = "?"


def _table(kind: str) -> bytes:
    return bytes(ord("x") if chr(c) in kind + _ANY else ord(" ") for c in range(256))


_WORD, _NUMBER = _table(string.ascii_letters), _table(string.digits)
_BLANK, _OTHER = (
    _table(string.whitespace),
    _table(string.punctuation + "".join(map(chr, [*range(9), *range(14, 32), 127]))),
)
_NOT_BLANK = _table("".join(chr(c) for c in range(128) if chr(c) not in string.whitespace))
_SPACED_WORDS = _table(string.ascii_letters + " ")
_KINDS = (_WORD, _NUMBER, _BLANK, _OTHER)
_MORE: Mapping[str, tuple[bytes, ...]] = {
    "exaone-moe": (_SPACED_WORDS,),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish", "viking", "whitespace"), (_NOT_BLANK,)),
}


def pre_tokenizer(metadata: Callable[[str], str | None]) -> str:
    """The name of what splits texts before BPE. metadata: from a key of the file to its value."""
    if metadata("tokenizer.ggml.model") == "gemma4":  # it has only one
        return "gemma4"
    return metadata("tokenizer.ggml.pre") or "default"


class WordSplit:
    """The limits of one vocabulary. pre: its pre-tokenizer as the GGUF file names it, None for a vocabulary
    that is not split by expressions.
    """

    def __init__(self, pre: str | None) -> None:
        self._pre = pre
        self._limit = 0 if pre is None or pre in _SAFE else _SLOW.get(pre, _MAX_RUN)
        self._kinds = (*_KINDS, *_MORE.get(pre or "", ()))

    def needs_stack(self, text: str) -> bool:
        """Whether this text has to be split on a large stack. Raises UsageError for a text with a run that
        llama.cpp cannot split.
        """
        if not self._limit or len(text) <= _SHORT_RUN:
            return False
        data = text.replace(_ANY, "!").encode("ascii", "replace")
        long = [kind for kind in self._kinds if _has_run(data, kind, _SHORT_RUN)]
        if any(_has_run(data, kind, self._limit) for kind in long):
            raise UsageError(
                f"the text has more than {self._limit} characters in a row without a break, and "
                f"llama.cpp cannot split them into words for this model (pre-tokenizer {self._pre!r})",
                "break the text up with spaces or line breaks, or leave that part out",
            )
        return bool(long)


def _has_run(data: bytes, kind: bytes, length: int) -> bool:
    """Whether there are more than `length` characters of this kind in a row."""
    return b"x" * (length + 1) in data.translate(kind)


_MOST_BREAKERS = 256  # texts whose breakers are kept
_CONTROL = llama.LLAMA_TOKEN_ATTR_CONTROL | llama.LLAMA_TOKEN_ATTR_UNKNOWN  # what parse_special parses
_FLOAT_TYPES = ("0", "1", "32")  # llama_ftype: F32, F16, BF16


def _has_amx_code() -> bool:
    return b"AMX_INT8 = 1" in llama.llama_print_system_info()


class LlamaModel:
    """Weights and vocabulary of one GGUF file.

    progress: called with the fraction loaded, 0 to 1. vocab_only: load no weights. with_head: load the layers
    for multi-token prediction too. is_head: the file is a head, which generates nothing by itself. ids_only:
    (architecture, number of tokens) of a draft that gets and gives ids: its vocabulary, which takes up to
    half of the time to load it, is left out. Raises UsageError for what this build or model does not support,
    IntegrityError if llama.cpp refuses the file, ResourceError if memory runs out.

    bos_id, eos_id: the tokens that begin and end a sequence, -1 for none. has_state: some layers keep a
    recurrent state, which cannot be truncated token by token.
    """

    def __init__(
        self,
        settings: ModelSettings,
        progress: Callable[[float], None] | None = None,
        vocab_only: bool = False,
        with_head: bool = False,
        is_head: bool = False,
        ids_only: tuple[str, int] | None = None,
    ) -> None:
        self.settings = settings
        self._params = ModelParams(settings, progress, vocab_only, ids_only)
        self._params.params.load_mtp = with_head
        log.clear()
        path = os.fsencode(settings.path)
        self.handle = handle = llama.llama_model_load_from_file(path, self._params.params)
        if not handle:
            raise _load_error(settings.path)
        self.not_locked = log.line_with("to mlock")  # why not all of it stays in memory, "" if it does
        self.vocab = vocab = llama.llama_model_get_vocab(handle)
        self.n_vocab: int = llama.llama_vocab_n_tokens(vocab)
        self.bos_id: int = llama.llama_vocab_bos(vocab)
        self.eos_id: int = llama.llama_vocab_eos(vocab)
        self.adds_bos: bool = llama.llama_vocab_get_add_bos(vocab)
        self.n_ctx_train: int = llama.llama_model_n_ctx_train(handle)
        self.n_layer: int = llama.llama_model_n_layer(handle)
        self.n_swa: int = llama.llama_model_n_swa(handle)
        self.has_state = llama.llama_model_is_recurrent(handle) or llama.llama_model_is_hybrid(handle)
        self._pieces: list[bytes | None] = [None] * self.n_vocab
        self._breakers: dict[str, Breakers] = {}
        is_bpe = llama.llama_vocab_type(self.vocab) == llama.LLAMA_VOCAB_TYPE_BPE
        self._word_split = WordSplit(pre_tokenizer(self.metadata) if is_bpe else None)
        if not vocab_only:
            if not is_head:
                self._refuse_unsupported()
            self._lora = [self._load_lora(path, scale) for path, scale in settings.lora]

    def _refuse_unsupported(self) -> None:
        if llama.llama_model_has_encoder(self.handle) or not llama.llama_model_has_decoder(self.handle):
            raise UsageError(f"{self.settings.path} is an encoder model; specllama runs decoder-only models")
        if llama.llama_model_is_diffusion(self.handle):
            raise UsageError(
                f"{self.settings.path} is a diffusion model; specllama runs left-to-right models"
            )

    def _load_lora(self, path: str, scale: float) -> tuple[object, float]:
        adapter = llama.llama_adapter_lora_init(self.handle, os.fsencode(path))
        if not adapter:
            raise IntegrityError(f"the LoRA adapter {path} does not fit {self.settings.path}: {log.reason()}")
        return adapter, scale

    def apply_lora(self, ctx: object) -> None:
        """Enable the LoRA adapters of the settings in a context (llama_context pointer)."""
        if self._lora:
            adapters = (llama.llama_adapter_lora_p_ctypes * len(self._lora))(*[a for a, _ in self._lora])
            scales = (ctypes.c_float * len(self._lora))(*[s for _, s in self._lora])
            llama.llama_set_adapters_lora(ctx, adapters, len(self._lora), scales)

    @functools.cached_property
    def end_ids(self) -> frozenset[int]:
        """All tokens that end a generation. As in llama.cpp's loader, these are control tokens or named by a
        key of the file.
        """
        names = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
        keys = (self.metadata(f"tokenizer.ggml.{name}_token_id") for name in names)
        named = {int(key) for key in keys if key is not None}
        return frozenset(
            i
            for i in {*self._control_ids, *named, self.eos_id}
            if 0 <= i < self.n_vocab and llama.llama_vocab_is_eog(self.vocab, i)
        )

    @functools.cached_property
    def _control_ids(self) -> list[int]:
        get_attr, vocab = llama.llama_vocab_get_attr, self.vocab
        return [i for i in range(self.n_vocab) if get_attr(vocab, i) & _CONTROL]

    @functools.cached_property
    def control_tokens(self) -> dict[int, str]:
        """The texts of all control tokens and of the unknown token, where they have one, by id."""
        return {i: text for i in self._control_ids if (text := self.token_text(i))}

    @property
    def control_texts(self) -> list[str]:
        """The texts of `control_tokens`."""
        return list(self.control_tokens.values())

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token, control tokens spelt out; at least 1."""
        nothing = ctypes.create_string_buffer(1)
        sizes = (
            llama.llama_token_to_piece(self.vocab, i, nothing, 0, 0, True)  # negative: the bytes it needs
            for i in range(self.n_vocab)
        )
        return max((abs(int(size)) for size in sizes), default=1) or 1

    @property
    def suppressed(self) -> list[int]:
        """Tokens that must never be generated (the file's tokenizer.ggml.suppress_tokens)."""
        n = ctypes.c_int32(0)
        ids = llama.llama_vocab_get_suppress_tokens(self.vocab, ctypes.byref(n))
        return [int(ids[i]) for i in range(n.value)] if ids else []

    def token_text(self, token: int) -> str:
        """The text of a token as the vocabulary spells it; "" for -1."""
        text = llama.llama_vocab_get_text(self.vocab, token) if token >= 0 else None
        return (text or b"").decode("utf-8", "replace")

    @property
    def uses_amx(self) -> bool:
        """Whether ggml multiplies this model's matrices with AMX tiles, also those of a few rows."""
        return not KERNELS.level and self._is_packed_for_amx and _has_amx_code()

    @property
    def rounds_prompts(self) -> bool:
        """Whether specllama's kernels are used, and prompts (decodes of 64 rows and more) are rounded
        otherwise than small decodes: see mul_mat.h.
        """
        on_host = self.settings.n_gpu_layers == 0
        return (KERNELS.amx and self._is_packed_for_amx) or (KERNELS.level == "neon" and on_host)

    @property
    def leaves_amx(self) -> bool:
        """Whether this processor has AMX, and llama.cpp was compiled without it, or so that its use would
        crash.
        """
        left = KERNELS.level == "avx512" and not KERNELS.amx and self._is_packed_for_amx
        return left and (_has_amx_code() or "amx_int8" in processor_flags())

    @property
    def _is_packed_for_amx(self) -> bool:
        """Whether most of its weights would be, where AMX is used."""
        return self.settings.n_gpu_layers == 0 and self.metadata("general.file_type") not in _FLOAT_TYPES

    def metadata(self, key: str) -> str | None:
        """A value of the file's metadata as text, None if there is no such key."""
        buffer = ctypes.create_string_buffer(1 << 10)
        n = llama.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else None

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """The token ids of a text; unpaired surrogates become "?". Any thread may call it.

        add_special: add BOS and EOS as the vocabulary says. parse_special: control tokens written in the text
        become their ids. Raises UsageError if llama.cpp cannot tokenise the text, ResourceError if memory
        for it is missing.
        """
        data = text.encode("utf-8", "replace")
        if self._word_split.needs_stack(text):
            return with_large_stack(lambda: self._tokenize(data, add_special, parse_special))
        return self._tokenize(data, add_special, parse_special)

    def _tokenize(self, data: bytes, add_special: bool, parse_special: bool) -> list[int]:
        if not data and not add_special:
            return []
        flags = add_special, parse_special
        ids = _filled(
            llama.llama_token,
            len(data) + 16,
            lambda ids, room: llama.llama_tokenize(self.vocab, data, len(data), ids, room, *flags),
        )
        if ids is None:
            raise UsageError(f"llama.cpp cannot tokenise this text of {len(data)} bytes")
        return list(ids)

    def piece(self, token: int) -> bytes:
        """The bytes of a token, empty for a control token."""
        known = self._pieces[token]
        if known is None:
            to_piece = llama.llama_token_to_piece
            known = _filled(
                ctypes.c_char, 64, lambda to, room: to_piece(self.vocab, token, to, room, 0, False)
            )
            known = self._pieces[token] = known or b""
        return known

    def knows_breakers(self, texts: Sequence[str]) -> bool:
        """Whether `breakers` need not search the vocabulary, which takes time."""
        return all(text in self._breakers for text in texts)

    def breakers(self, texts: Sequence[str]) -> Breakers:
        """Where the texts interrupt repetitions, for the sampling step `dry`. Any thread may call it."""
        merged: dict[int, set[tuple[int, ...]]] = {}
        for text in texts:
            if (known := self._breakers.get(text)) is None:
                if len(self._breakers) >= _MOST_BREAKERS:
                    self._breakers.clear()
                data = text.encode("utf-8", "replace")[:MAX_BYTES]
                known = self._shown.overlapping(data, lambda tail: self._tokenize(tail, False, False))
                self._breakers[text] = known
            for token, tails in known.items():
                merged.setdefault(token, set()).update(tails)
        return {token: tuple(tails) for token, tails in merged.items()}

    @functools.cached_property
    def _shown(self) -> Pieces:
        """The texts of all tokens, control tokens included."""
        return Pieces([self._detokenized(token) for token in range(self.n_vocab)])

    def _detokenized(self, token: int) -> bytes:
        one, write = (llama.llama_token * 1)(token), llama.llama_detokenize
        return (
            _filled(ctypes.c_char, 64, lambda to, room: write(self.vocab, one, 1, to, room, False, True))
            or b""
        )

    @property
    def tokenize_address(self) -> int:
        """The address of llama_tokenize, for a library that calls it itself."""
        return ctypes.cast(llama.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value or 0

    def close(self) -> None:
        """Free the weights. Close all contexts of the model first."""
        if self.handle:
            llama.llama_model_free(self.handle)
            self.handle = None


def _filled(kind: Any, room: int, write: Callable[[Any, int], int]) -> Any:
    """The items that a function of llama.cpp writes into an array; None where it says twice that it needs
    another size.
    """
    for _ in range(2):
        to = (kind * room)()
        n = write(to, room)
        if n >= 0:
            return to[:n]
        room = -n
    return None


def _load_error(path: str) -> Exception:
    reason = log.reason()
    if re.search(r"alloc|out of memory|not enough", reason, re.IGNORECASE):
        return ResourceError(
            f"not enough memory to load {path}: {reason}",
            f"use a smaller quant, or fewer {option('n_gpu_layers')} layers",
        )
    return IntegrityError(
        f"llama.cpp cannot load {path}: {reason}", "get the file again, or another quant of it"
    )


class FimTokens(NamedTuple):
    """The tokens around the parts of a text with a gap (fill in the middle), -1 for those that the vocabulary
    lacks. prefix, suffix: before the text before and after the gap. middle: before what fills it. repository,
    separator: before the name of a repository, and of a file.
    """

    prefix: int
    suffix: int
    middle: int
    repository: int
    separator: int

    @property
    def missing(self) -> list[str]:
        """The names of those missing without which no gap can be described."""
        names = ("prefix", "suffix", "middle")
        return [name for name, token in zip(names, self[:3], strict=True) if token < 0]


def fim_tokens(model: LlamaModel) -> FimTokens:
    """The tokens for filling a gap, as llama.cpp knows them."""
    names = ("pre", "suf", "mid", "rep", "sep")
    return FimTokens(*(int(getattr(llama, f"llama_vocab_fim_{name}")(model.vocab)) for name in names))


def end_of_turn_id(model: LlamaModel) -> int:
    """The end-of-turn token, or else the end-of-sequence token; -1 if there is neither."""
    token = int(llama.llama_vocab_eot(model.vocab))
    return token if token >= 0 else model.eos_id
