"""The memory of a projector in bytes: its weights, the buffers of its encoder, an image and its rows.

Pure functions over its header, for the largest image that it takes. Measured with libmtmd on the CPU: within
ten percent of what is allocated, for the shapes of SigLIP, Qwen2-VL and Qwen2.5-VL.
"""

from __future__ import annotations

from dataclasses import dataclass

from specllama.gguf.projector import Projector

_F16, _F32, _F32_PIXEL = 2, 4, 12
_COPIES = 3  # of an image's pixels, as they are prepared for the encoder
_ROW_COPIES = 2  # of its rows
_MARGIN = 1.05
_FIXED = 4 << 20  # bytes: graph nodes, threads


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
    work = n * max(n_ff, n_embd) * _F16  # activations as products with F16 weights need them
    rest = _COPIES * pixels + _ROW_COPIES * projector.n_rows * (projector.width or n_embd) * _F32 + _FIXED
    if on_device:
        return ImageMemory(header.weight_bytes, round(_MARGIN * compute), round(_MARGIN * rest), True)
    return ImageMemory(header.weight_bytes, round(_MARGIN * (compute + work)), round(_MARGIN * rest))
