"""Tiny random projectors (mmproj) for the tiny models of tinygguf, and a model with M-RoPE.

    gemma3    siglip's encoder: every image is 16 rows, which see each other
    internvl  tiles of 4 rows, and an overview: several parts an image, each with marks around it
    idefics3  an overview and tiles, with tokens around them that no tiny model has
    qwen2vl   any size, a row for each 8 x 8 pixels; positions by M-RoPE, for the model `qwen2vl_text`
    qwen3vl   as qwen2vl, for Qwen 3 VL and later
    text      writes a text: its rows are the embeddings of the tokens that `text_image` has drawn

Each is a function `(path, ...) -> path`. Independent of specllama.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.support.tinygguf import N_EMBD, N_HEAD_KV, Builder, written
from tests.support.tinyheads import read_tensors

WIDTH, HEADS, FF = 32, 2, 64  # of the encoders
SIDE = 4  # of the images of `text`, in tokens: all have 16
_CELL = 10  # pixels of a token's side: one of its 300 bytes says which token it is


class Projector:
    """A file with one block of a vision transformer."""

    def __init__(
        self, path: Path | str, kind: str, seed: int, image_size: int, patch_size: int, n_embd: int = WIDTH
    ) -> None:
        self.path, self.n_embd, self.rng = Path(path), n_embd, np.random.default_rng(seed)
        self.writer = w = gguf.GGUFWriter(str(path), "clip")
        w.add_type("mmproj")
        w.add_name(f"tiny-{kind}")
        w.add_bool("clip.has_vision_encoder", True)
        w.add_string("clip.projector_type", kind)
        w.add_bool("clip.use_gelu", True)
        for key, value in {
            "embedding_length": n_embd, "feed_forward_length": FF, "block_count": 1, "projection_dim": N_EMBD,
            "attention.head_count": HEADS, "image_size": image_size, "patch_size": patch_size,
        }.items():  # fmt: skip
            w.add_uint32(f"clip.vision.{key}", value)
        w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)

    def colours(self, mean: float, std: float) -> None:
        self.writer.add_array("clip.vision.image_mean", [mean] * 3)
        self.writer.add_array("clip.vision.image_std", [std] * 3)

    def put(self, name: str, x: NDArray[np.float32]) -> None:
        self.writer.add_tensor(name, np.ascontiguousarray(x, np.float32))

    def random(self, name: str, *shape: int) -> None:
        self.put(name, self.rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5)

    def linear(self, name: str, n_out: int, n_in: int) -> None:
        self.random(f"{name}.weight", n_out, n_in)
        self.put(f"{name}.bias", 0.1 * self.rng.standard_normal(n_out))

    def norm(self, name: str, n: int) -> None:
        self.put(f"{name}.weight", np.ones(n))
        self.put(f"{name}.bias", np.zeros(n))

    def encoder(
        self, patch_size: int, names: Sequence[str] = ("v.patch_embd.weight",), fused: bool = False
    ) -> None:
        """One block and what is before and after it. names: of the convolutions. fused: one tensor makes
        queries, keys and values.
        """
        self.colours(0.5, 0.5)
        for name in names:
            self.random(name, self.n_embd, 3, patch_size, patch_size)
        for name in ("qkv",) if fused else ("q", "k", "v"):
            self.linear(f"v.blk.0.attn_{name}", len(name) * self.n_embd, self.n_embd)
        self.linear("v.blk.0.attn_out", self.n_embd, self.n_embd)
        self.linear("v.blk.0.ffn_up", FF, self.n_embd)
        self.linear("v.blk.0.ffn_down", self.n_embd, FF)
        for name in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
            self.norm(name, self.n_embd)

    def write(self) -> Path:
        return written(self.writer, self.path)


def gemma3(path: Path | str, seed: int = 0, *, n_embd: int = N_EMBD) -> Path:
    """n_embd: of the model that it is for."""
    p = Projector(path, "gemma3", seed, image_size=32, patch_size=4)
    p.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    p.encoder(4)
    p.random("v.position_embd.weight", 64, WIDTH)
    p.random("mm.input_projection.weight", WIDTH, n_embd)
    p.put("mm.soft_emb_norm.weight", np.ones(WIDTH))
    return p.write()


def internvl(path: Path | str, seed: int = 0) -> Path:
    p = Projector(path, "internvl", seed, image_size=32, patch_size=8)
    p.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    p.encoder(8)
    p.random("v.position_embd.weight", 17, WIDTH)
    p.put("v.class_embd", p.rng.standard_normal(WIDTH))
    p.norm("mm.model.mlp.0", 4 * WIDTH)
    p.linear("mm.model.mlp.1", FF, 4 * WIDTH)
    p.linear("mm.model.mlp.3", N_EMBD, FF)
    return p.write()


def idefics3(path: Path | str, seed: int = 0) -> Path:
    """For models with tokens of their own around images, which the tiny ones lack."""
    p = Projector(path, "idefics3", seed, image_size=32, patch_size=8)
    p.writer.add_uint32("clip.vision.preproc_image_size", 32)
    p.writer.add_uint32("clip.vision.projector.scale_factor", 2)
    p.encoder(8)
    p.random("v.position_embd.weight", 16, WIDTH)
    p.random("mm.model.fc.weight", N_EMBD, 4 * WIDTH)
    return p.write()


def qwen2vl(path: Path | str, seed: int = 0) -> Path:
    p = Projector(path, "qwen2vl_merger", seed, image_size=64, patch_size=4)
    p.encoder(4, ("v.patch_embd.weight", "v.patch_embd.weight.1"))
    p.linear("mm.0", 4 * WIDTH, 4 * WIDTH)
    p.linear("mm.2", N_EMBD, 4 * WIDTH)
    return p.write()


def qwen3vl(path: Path | str, seed: int = 0) -> Path:
    p = Projector(path, "qwen3vl_merger", seed, image_size=64, patch_size=4)
    p.encoder(4, ("v.patch_embd.weight", "v.patch_embd.weight.1"), fused=True)
    p.put("v.patch_embd.bias", np.zeros(WIDTH))
    p.random("v.position_embd.weight", 256, WIDTH)
    p.linear("mm.0", 4 * WIDTH, 4 * WIDTH)
    p.linear("mm.2", N_EMBD, 4 * WIDTH)
    return p.write()


def qwen2vl_text(path: Path | str, seed: int = 0, *, n_layer: int = 2, **more: Any) -> Path:
    """The text model of `qwen2vl`: plain attention, with positions of time, height and width."""
    b = Builder("qwen2vl", path, seed, n_layer, **more)
    b.heads(N_HEAD_KV, rope=True)
    b.writer.add_rope_dimension_sections([2, 3, 3, 0])
    for i in range(n_layer):
        b.ones(f"blk.{i}.attn_norm", N_EMBD)
        b.attention(i)
        for name in "qkv":
            n = b.tensors[f"blk.{i}.attn_{name}.weight"].shape[0]
            b.put(f"blk.{i}.attn_{name}.bias", 0.1 * b.random(n))
        b.feed_forward(i)
    return b.write()


def text(path: Path | str, model: Path | str) -> Path:
    """The projector for which an image is a text of 16 tokens of this model: exactly their embeddings."""
    embeddings = read_tensors(model)["token_embd.weight"]
    n = 3 * _CELL**2  # more than there are tokens
    p = Projector(path, "mlp", 0, image_size=SIDE * _CELL, patch_size=_CELL, n_embd=n)
    p.colours(0.0, 1.0)
    # A token's byte becomes 16 in its place of n; GELU leaves 0 and 16 as they are.
    p.put("v.patch_embd.weight", 16 * np.eye(n).reshape(n, 3, _CELL, _CELL))
    p.put("v.position_embd.weight", np.zeros((SIDE**2, n)))
    p.put("mm.0.weight", np.eye(n))
    p.put("mm.0.bias", np.zeros(n))
    columns = np.zeros((embeddings.shape[1], n), np.float32)
    columns[:, : len(embeddings)] = embeddings.T / 16
    p.put("mm.2.weight", columns)
    p.put("mm.2.bias", np.zeros(len(columns)))
    for name, shape in (("attn_out", (1, n)), ("ffn_up", (1, n)), ("ffn_down", (n, 1))):  # not computed
        p.random(f"v.blk.0.{name}.weight", *shape)
    return p.write()


def text_image(ids: Sequence[int]) -> tuple[bytes, int, int]:
    """The pixels of the image that is these 16 tokens, its width and its height."""
    assert len(ids) == SIDE**2
    pixels = np.zeros((SIDE, _CELL, SIDE, _CELL, 3), np.uint8)
    for i, token in enumerate(ids):
        colour, y, x = np.unravel_index(token, (3, _CELL, _CELL))
        pixels[i // SIDE, y, i % SIDE, x, colour] = 255
    return pixels.tobytes(), SIDE * _CELL, SIDE * _CELL


def noise_image(width: int, height: int, seed: int = 0) -> bytes:
    """Random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8).tobytes()
