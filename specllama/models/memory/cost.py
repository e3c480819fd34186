"""The memory of a loaded model in bytes: weights, KV cache, recurrent state, compute buffers.

Pure functions over headers. KV cache and recurrent state follow llama-kv-cache.cpp and
llama-hparams.cpp to the byte; compute buffers are an upper estimate, 1.1 to 1.6 times what llama.cpp
reserves for dense models.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from specllama.config.load import LoadSettings, ModelSettings, reserved_outputs
from specllama.gguf.architectures import HYBRID, INTERVAL, NOT_CAUSAL, RECURRENT, ROLLBACK, SWA_PATTERNS
from specllama.gguf.header import Header
from specllama.gguf.parse import row_bytes
from specllama.gguf.projector import Projector
from specllama.gguf.trimmed import PREFIX
from specllama.models.memory.available import DeviceMemory

# Layers with a sliding window: which they are, how many cells they keep, and whether they keep all.
#
# Follows `load_swa_pattern` of llama.cpp's models and llama-kv-cache-iswa.cpp. Layers that are not known to
# have a window count as layers without.


def windowed_layers(h: Header) -> tuple[bool, ...]:
    """By layer: whether it keeps the cells of a window alone, where not all are asked for."""
    none = (False,) * h.n_layer
    if not h.arch_integer("attention.sliding_window"):
        return none
    pattern = h.metadata.get(f"{h.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray):
        return tuple(map(bool, pattern)) if len(pattern) == h.n_layer else none
    if h.architecture not in SWA_PATTERNS:
        return none
    every, full_first = SWA_PATTERNS[h.architecture]
    every = h.arch_integer("attention.sliding_window_pattern", every)
    if not every:
        return (True,) * h.n_layer
    full = 0 if full_first else every - 1
    return tuple(i % every != full for i in range(h.n_layer))


def keeps_all_cells(settings: LoadSettings, with_head: bool = False) -> bool:
    """Whether windowed layers of the target keep all cells. Where the settings do not say, they do if a
    restored window would be rounded in another way: attention that depends on where cells lie is that of
    caches of other types than F16, of a context without flash attention, and of exact texts on other devices.
    Heads may read these cells.
    """
    s = settings.target
    if s.swa_full is not None:
        return s.swa_full
    plain = s.cache_type_k == s.cache_type_v == "f16" and s.flash_attn != "off"
    return settings.exact or with_head or not plain


_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_HOST = "CPU"


def tensor_overrides(s: ModelSettings) -> list[tuple[str, str]]:
    """(regular expression of names, buffer type), as llama.cpp reads them: the first that matches counts."""
    if s.n_cpu_moe == -1:
        experts = [(_EXPERTS, _HOST)]
    else:
        experts = [(rf"blk\.{layer}" + _EXPERTS, _HOST) for layer in range(s.n_cpu_moe)]
    return [*s.override_tensor, *experts]


def stays_on_host(name: str, overrides: Iterable[tuple[str, str]]) -> bool:
    """Whether a tensor stays in host memory though its layer is on a device. A pattern that is no regular
    expression matches nothing; loading refuses it.
    """
    for pattern, buffer in overrides:
        try:
            match = re.search(pattern, name)
        except re.error:
            continue
        if match:
            return buffer == _HOST
    return False


N_CTX_PAD = 256  # llama.cpp rounds n_ctx up to a multiple of it

_F32 = 4
_COMPUTE_MARGIN = 1.15
_FIXED = 32 << 20  # bytes per context: graph nodes, batches, threads
_PER_TOKEN_TEXT = 512  # bytes per token of the vocabulary in llama.cpp: strings, two maps, pieces, merges
_DEFAULT = ModelSettings(path="")
_BLOCK = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class CostSettings:
    """The settings of a model and its context that memory depends on. n_outputs_max: rows of logits.
    n_rs_seq: recurrent states of each sequence. n_spare: cells of the cache beyond n_ctx. devices: to use.
    """

    model: ModelSettings = _DEFAULT
    n_slots: int = 1
    n_outputs_max: int = 64
    n_rs_seq: int = 0
    n_spare: int = 0
    swa_full: bool = True
    devices: tuple[DeviceMemory, ...] = ()

    @property
    def n_gpu_layers(self) -> int:
        """AUTO for all that fit, ALL_LAYERS for all."""
        return self.model.n_gpu_layers if self.devices else 0

    def with_model(self, **changes: Any) -> CostSettings:
        return replace(self, model=replace(self.model, **changes))


@dataclass(frozen=True)
class Usage:
    """Memory of one model and its context in bytes: by part, and in total on the host and on devices."""

    n_ctx: int
    n_gpu_layers: int
    weights: int
    kv: int
    state: int
    compute: int
    outputs: int
    fixed: int
    host: int
    device: int


@dataclass(frozen=True, eq=False)
class MemoryCosts:
    """Computes the memory of a model for any n_ctx and n_gpu_layers.

    n_above: blocks of its head, which llama.cpp counts among the layers that go to devices first. rows: bytes
    of buffers for hidden states. n_contexts: contexts with a cache and buffers each.
    """

    header: Header
    settings: CostSettings
    n_above: int = 0
    rows: int = 0
    n_contexts: int = 1

    def usage(self, n_ctx: int, n_gpu_layers: int = 0) -> Usage:
        """The memory with `n_ctx` tokens of context and `n_gpu_layers` layers on devices, the last ones, as
        llama.cpp counts them (`n_offloaded_max`).
        """
        layers = [w + c for w, c in zip(self.layer_weights, self.layer_caches(n_ctx), strict=True)]
        compute = self.compute(n_ctx) * self.n_contexts
        # Rows of a trimmed draft are spread over the whole vocabulary.
        n_logits = self.header.n_vocab + self.header.integer(f"{PREFIX}n_vocab")
        outputs = reserved_outputs(self.settings.n_outputs_max) * n_logits * _F32 + self.rows
        outputs *= self.n_contexts
        fixed = _FIXED + _PER_TOKEN_TEXT * self.header.n_vocab
        n_gpu_layers = min(max(n_gpu_layers, 0), self.n_offloaded_max)
        n_gpu = max(n_gpu_layers - self.n_above, 0)
        host = self.header.weight_bytes - sum(self.layer_weights) + sum(layers) + compute + outputs + fixed
        device = 0
        if n_gpu:
            moved = sum(layers[len(layers) - (n_gpu - 1) :])
            # An output matrix that is also the embeddings stays on the host as well.
            host -= moved + (self.output_weights if self.has_output else 0)
            device = moved + self.output_weights + compute
        return Usage(
            n_ctx=n_ctx,
            n_gpu_layers=n_gpu_layers,
            weights=self.header.weight_bytes,
            kv=self.kv(n_ctx),
            state=sum(self.state_layers),
            compute=compute,
            outputs=outputs,
            fixed=fixed,
            host=host,
            device=device,
        )

    @property
    def n_offloaded_max(self) -> int:
        """The layers that devices can have, as llama.cpp counts them: with the output and the head."""
        return self.header.n_layer + 1 + self.n_above

    @cached_property
    def layer_weights(self) -> tuple[int, ...]:
        """Bytes of the tensors of each block that go where the block goes."""
        sums, overrides = [0] * self.header.n_layer, tensor_overrides(self.settings.model)
        for t in self.header.tensors:
            match = _BLOCK.match(t.name)
            if match and int(match[1]) < len(sums) and not stays_on_host(t.name, overrides):
                sums[int(match[1])] += t.n_bytes
        return tuple(sums)

    @cached_property
    def has_output(self) -> bool:
        """Whether the output matrix is a separate tensor, not the embeddings."""
        return any(t.name == "output.weight" for t in self.header.tensors)

    @cached_property
    def output_weights(self) -> int:
        """Bytes of the output matrix and norm, which go to the device with the first offloaded layer."""
        name = "output" if self.has_output else "token_embd"
        return sum(t.n_bytes for t in self.header.tensors if t.name.startswith((f"{name}.", "output_norm.")))

    @cached_property
    def head_sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(key, value) elements of an attention head: in full layers, and in layers with a sliding window."""
        h = self.header
        n_head = next((n for n in h.n_head if n), 0)
        default = h.n_embd // n_head if n_head else 0
        k, v = (h.arch_integer(f"attention.{name}_length", default) for name in ("key", "value"))
        window = [h.arch_integer(f"attention.{name}_length_swa") for name in ("key", "value")]
        return (k, v), (window[0] or k, window[1] or v)

    @cached_property
    def cache_widths(self) -> tuple[tuple[int, int], ...]:
        """Elements per token of each layer's K and V cache; (0, 0) for a layer without a cache."""
        h = self.header
        n_kv = h.n_head_kv
        if h.architecture in RECURRENT | NOT_CAUSAL or not any(n_kv):
            return ((0, 0),) * h.n_layer
        full, window = self.head_sizes
        pattern = h.metadata.get(f"{h.architecture}.attention.sliding_window_pattern")
        known = isinstance(pattern, np.ndarray) and len(pattern) == h.n_layer
        index = h.arch_integer("attention.indexer.key_length")
        latent = h.arch_integer("attention.key_length_mla") > 0
        # The first layer that uses the KV cache of an earlier one.
        shared = h.arch_integer("attention.shared_kv_layers")
        last = 20 if h.architecture == "gemma3n" else h.n_layer - shared
        widths = []
        for i in range(h.n_layer):
            sizes = (max(full[0], window[0]), max(full[1], window[1]))
            if isinstance(pattern, np.ndarray) and known:
                sizes = window if pattern[i] else full
            attends = i < last and not (h.architecture in INTERVAL and self.recurrent[i])
            n = n_kv[i] if attends else 0
            widths.append((sizes[0] * n + (index if n else 0), 0 if latent else sizes[1] * n))
        if self.settings.model.flash_attn == "off":  # V is then transposed and padded to the widest layer
            widest = max(v for _, v in widths)
            widths = [(k, widest if k else 0) for k, _ in widths]
        return tuple(widths)

    @cached_property
    def recurrent(self) -> tuple[bool, ...]:
        """By layer: whether it keeps a recurrent state."""
        h = self.header
        if h.architecture in RECURRENT or h.architecture == "falcon-h1":
            return (True,) * h.n_layer
        if h.architecture not in HYBRID:
            return (False,) * h.n_layer
        if h.architecture in INTERVAL:
            given = h.per_layer("attention.recurrent_layers")
            every = h.arch_integer("full_attention_interval", 4) or 4
            return tuple(map(bool, given)) or tuple((i + 1) % every != 0 for i in range(h.n_layer))
        if h.architecture.startswith("nemotron_h"):
            n_ff = h.per_layer("feed_forward_length", 0)
            return tuple(n == 0 and ff == 0 for n, ff in zip(h.n_head_kv, n_ff, strict=True))
        return tuple(n == 0 for n in h.n_head_kv)

    @cached_property
    def state_layers(self) -> tuple[int, ...]:
        """Bytes of each layer's recurrent state, for all slots and their snapshots."""
        n_rs_seq = self.settings.n_rs_seq if self.header.architecture in ROLLBACK else 0
        each = _state_elements(self.header) * _F32 * self.settings.n_slots * (1 + n_rs_seq)
        return tuple(each if recurrent else 0 for recurrent in self.recurrent)

    def layer_caches(self, n_ctx: int) -> tuple[int, ...]:
        """Bytes of each layer's KV caches and recurrent state."""
        s, cells = self.settings, -(-n_ctx // N_CTX_PAD) * N_CTX_PAD
        most = self.header.arch_integer("attention.sliding_window") * s.n_slots + s.model.n_ubatch
        of_window = -(-min(cells, most) // N_CTX_PAD) * N_CTX_PAD
        windowed = (False,) * self.header.n_layer if s.swa_full else windowed_layers(self.header)
        return tuple(
            self.n_contexts
            * (of_window if window else cells)
            * (row_bytes(s.model.cache_type_k, n_k) + row_bytes(s.model.cache_type_v, n_v))
            + state
            for (n_k, n_v), state, window in zip(self.cache_widths, self.state_layers, windowed, strict=True)
        )

    def kv(self, n_ctx: int) -> int:
        """Bytes of the KV caches."""
        return sum(self.layer_caches(n_ctx)) - sum(self.state_layers)

    def compute(self, n_ctx: int) -> int:
        """Bytes of a compute buffer, an upper estimate: the widest point of a graph over n_ubatch tokens.

        That is the feed-forward part, attention (with n_ctx × n_head scores if flash attention is off) or the
        logits, together with the attention masks.
        """
        h, s = self.header, self.settings
        off = s.model.flash_attn == "off"
        n_head = max(h.n_head, default=0)
        n_tokens = min(s.model.n_ubatch, s.model.n_batch, n_ctx)
        cells = -(-n_ctx // N_CTX_PAD) * N_CTX_PAD
        width = max(h.n_embd, n_head * max(self.head_sizes[0]))
        attention = n_tokens * (6 * width + (cells * n_head if off else 0))
        feed_forward = n_tokens * (4 * _active_ff(h) + 2 * h.n_embd)
        logits = min(n_tokens, reserved_outputs(s.n_outputs_max)) * (h.n_vocab + 2 * h.n_embd)
        recurrent = 0
        if any(self.recurrent):
            recurrent = n_tokens * (4 * _state_width(h) + 2 * h.n_embd) + 3 * max(self.state_layers) // _F32
        n_masks = 2 if h.arch_integer("attention.sliding_window") else 1
        if h.architecture not in NOT_CAUSAL and not any(k for k, _ in self.cache_widths):
            n_masks = 0
        masks = n_masks * n_tokens * cells * (_F32 if off else 2)
        widest = max(attention, feed_forward, logits, recurrent) * _F32
        return math.ceil(_COMPUTE_MARGIN * (widest + masks)) + (1 << 20)


def _active_ff(h: Header) -> int:
    """Feed-forward elements of one token: in dense layers, or in the experts that it is routed to."""
    dense = h.arch_integer("feed_forward_length")
    used = h.arch_integer("expert_used_count")
    expert = h.arch_integer("expert_feed_forward_length", dense) * used
    shared = h.arch_integer("expert_shared_feed_forward_length")
    return max(dense, expert + shared)


def _state_width(h: Header) -> int:
    """Elements of one token inside a recurrent layer."""
    heads = max(h.n_head, default=0) * h.arch_integer("kda.head_dim")
    groups = 2 * h.arch_integer("ssm.group_count") * h.arch_integer("ssm.state_size")
    return max(h.arch_integer("ssm.inner_size") * 2 + groups, heads * 3, h.n_embd)


def _state_elements(h: Header) -> int:
    """n_embd_r + n_embd_s of llama-hparams.cpp: convolution and state elements of one layer and sequence."""
    n_head = h.n_head[0] if h.n_head else 0
    conv, inner, state = (h.arch_integer(f"ssm.{n}") for n in ("conv_kernel", "inner_size", "state_size"))
    if wkv := h.arch_integer("wkv.head_size"):
        return h.n_embd * (h.arch_integer("token_shift_count", 2) + wkv)
    if kda := h.arch_integer("kda.head_dim"):
        return 3 * (conv - 1 if conv else 3) * n_head * kda + kda * kda * n_head
    if short := h.arch_integer("shortconv.l_cache"):
        return h.n_embd * (short - 1) + state * inner
    if h.architecture == "minimax-01":
        return h.arch_integer("attention.key_length", h.n_embd // max(n_head, 1)) ** 2 * n_head
    return max(conv - 1, 0) * (inner + 2 * h.arch_integer("ssm.group_count") * state) + state * inner


# The memory of a projector: its weights, the buffers of its encoder, an image and its rows.
#
# For the largest image that it takes. Measured with libmtmd on the CPU: within 10 % of what is allocated,
# for the shapes of SigLIP, Qwen2-VL and Qwen2.5-VL.


_F16, _F32_PIXEL = 2, 12
_COPIES = 3  # of an image's pixels, as they are prepared for the encoder
_ROW_COPIES = 2  # of its rows
_ENCODER_MARGIN = 1.05
_FIXED_ENCODER = 4 << 20  # bytes: graph nodes, threads


@dataclass(frozen=True)
class ImageMemory:
    """weights, compute: bytes of the projector and of its encoder's buffers. rest: always on the host.
    on_device: whether weights and buffers are on the first device.
    """

    weights: int = 0
    compute: int = 0
    rest: int = 0
    on_device: bool = False

    @property
    def host(self) -> int:
        return self.rest + (0 if self.on_device else self.weights + self.compute)

    @property
    def device(self) -> int:
        return self.weights + self.compute if self.on_device else 0


NO_IMAGES = ImageMemory()


def image_memory(projector: Projector, flash_attn: str, on_device: bool) -> ImageMemory:
    """The memory of a projector. flash_attn: as in ModelSettings."""
    header, n = projector.header, projector.n_patches
    n_embd, n_ff, n_head, patch = (
        header.integer(f"clip.vision.{key}")
        for key in ("embedding_length", "feed_forward_length", "attention.head_count", "patch_size")
    )
    gated = any(".ffn_gate." in t.name for t in header.tensors)
    plain = 4 * n_embd + _F32_PIXEL // _F32 * patch**2  # numbers of a patch outside of attention
    scores = masks = 0
    if flash_attn == "off":
        attention, scores = 6 * n_embd, n_head * n**2 * _F32
    else:
        attention = 10 * n_embd if projector.rotated else 6 * n_embd
    if projector.masked:
        masks = n**2 * (_F32 if flash_attn == "off" else _F32 + _F16)
    feed_forward = n_ff * (2 if gated else 1) + 3 * n_embd
    widest = max(attention, feed_forward)
    pixels = n * patch**2 * _F32_PIXEL
    if flash_attn == "off":
        compute = n * widest * _F32 + scores + masks
    else:
        compute = max(n * widest * _F32 + pixels * projector.rotated, n * plain * _F32 + masks)
    if not on_device:
        compute += n * max(n_ff, n_embd) * _F16  # activations as products with F16 weights need them
    rest = (
        _COPIES * pixels
        + _ROW_COPIES * projector.n_rows * (projector.width or n_embd) * _F32
        + _FIXED_ENCODER
    )
    compute, rest = (round(_ENCODER_MARGIN * n_bytes) for n_bytes in (compute, rest))
    return ImageMemory(header.weight_bytes, compute, rest, on_device)
