"""The tokens of prompts and texts that were evaluated before and are kept on disk (prefix_disk).

Counts only: which tokens, not in which order. Somebody who gets a file that was trimmed with them can see
from its tokens what was said rarely elsewhere and often here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from specllama.errors import NotFoundError, ResourceError
from specllama.prefix_disk.directory import StateDirectory, default_directory


def seen_tokens(models: Sequence[str], say: Callable[[str], None]) -> dict[int, int]:
    """How often each token is in the prompts of these models, by the names that `specllama cache` shows; each
    beginning of a prompt that several of them share counts once a prompt.

    Raises NotFoundError for a model without any, ResourceError where the directory cannot be read.
    """
    if not models:
        return {}
    counts, missing = Counter[int](), set(models)
    directory = StateDirectory(default_directory(), say)
    try:
        names = directory.sizes() if directory.open(create=False) else {}
        for name in names:
            header = directory.header(name)
            if header is None or header.meta.model not in models:
                continue
            missing.discard(header.meta.model)
            ids, n = np.unique(np.frombuffer(header.ids, "<i4"), return_counts=True)
            counts.update(dict(zip(ids.tolist(), n.tolist(), strict=True)))
    except OSError as error:
        raise ResourceError(f"{directory.path} cannot be read: {error.strerror or error}") from None
    if missing:
        name = sorted(missing)[0]
        raise NotFoundError(f"no prompt of {name!r} is kept on disk", "specllama cache lists them")
    return dict(counts)
