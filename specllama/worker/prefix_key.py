"""The key under which the prefix states of a loaded model are kept on disk: what could change a state.

The states of a target and of a draft model have keys of their own. Not part of a key, because no state
depends on it: the number of slots, the size of the context (but for models with other RoPE factors in long
ones), sampling, drafters.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from specllama.config.load import LoadSettings, ModelSettings
from specllama.gguf.header import Header
from specllama.gguf.identity import FileIdentity, file_identity, part_identities
from specllama.llama.context import LlamaContext
from specllama.llama.library import build_info, system_info
from specllama.prefix_disk.model_key import model_key
from specllama.worker.profile_keys import target_key

_IN_KEY = (
    "n_batch", "n_ubatch", "tensor_parallel_size", "rope_scaling", "rope_scale", "rope_freq_base",
    "rope_freq_scale", "yarn_orig_ctx", "yarn_ext_factor", "yarn_attn_factor", "yarn_beta_slow",
    "yarn_beta_fast",
)  # fmt: skip


def model_files(header: Header, settings: ModelSettings) -> tuple[FileIdentity, ...]:
    """The files of a model and its adapters; to be read before llama.cpp opens them, and compared after, so
    that one that is replaced meanwhile is seen. Raises OSError.
    """
    return (*header.once(part_identities), *(file_identity(path) for path, _ in settings.lora))


def prefix_key(
    header: Header, context: LlamaContext, files: Sequence[FileIdentity], settings: LoadSettings
) -> str:
    """The key of the states of a context, "" where the files are not known or one was replaced while it was
    loaded: nothing is to be kept or found then.

    files: from `model_files`, () where they are not known. settings: of the load; those of the context's own
    model are `context.model`'s.
    """
    if not files or not all(file.unchanged() for file in files):
        return ""
    own = context.model.settings
    scales = [scale for _, scale in own.lora]
    more = {name: getattr(own, name) for name in _IN_KEY}
    build = build_info()
    facts: dict[str, object] = {
        **target_key(header, own, context),
        **more,
        "lora": scales,
        "versions": [build["llama_cpp_python"], build["llama_cpp"], build["ggml"], system_info()],
        "system": [platform.system(), platform.machine()],
        "long": context.n_ctx + context.n_spare > _n_ctx_original(header, own),
        "rollback": context.max_rollback,
        "swa_full": own.swa_full is not False,
        "rpc": list(settings.rpc),
        "exact": [settings.exact, settings.exact_width],
    }
    return model_key(files, facts)


def _n_ctx_original(header: Header, settings: ModelSettings) -> int:
    """The context beyond which llama.cpp uses the RoPE factors of long ones (get_rope_factors there)."""
    own = header.integer(f"{header.architecture}.rope.scaling.original_context_length")
    return settings.yarn_orig_ctx or own or header.n_ctx_train
