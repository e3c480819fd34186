"""Layers with a sliding window: which they are, how many cells they keep, and whether they keep all.

Follows `load_swa_pattern` of llama.cpp's models and llama-kv-cache-iswa.cpp. Layers that are not known to
have a window count as layers without.
"""

from __future__ import annotations

import numpy as np

from specllama.config.load import LoadSettings
from specllama.gguf.architectures import SWA_PATTERNS
from specllama.gguf.header import Header


def windowed_layers(h: Header) -> tuple[bool, ...]:
    """Which layers keep the cells of a window alone, where not all are asked for."""
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


def window_cells(h: Header, n_ctx: int, n_slots: int, n_ubatch: int, multiple: int) -> int:
    """Cells of the cache of windowed layers. n_ctx: cells of the others, a multiple of `multiple`."""
    most = h.arch_integer("attention.sliding_window") * n_slots + n_ubatch
    return -(-min(n_ctx, most) // multiple) * multiple


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
