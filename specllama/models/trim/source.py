"""Whether the file or the parts that a draft was trimmed from have changed since."""

from __future__ import annotations

import os

from specllama.errors import IntegrityError, NotFoundError, UsageError
from specllama.gguf.header import Header, read_model
from specllama.gguf.trimmed import read_trim
from specllama.models.trim.write import sha256_of


def changed_source(draft: Header) -> str:
    """The name of the source of a trimmed draft if it is in the same folder and has other contents now, else
    "". Reads the whole source if its size is the same. Raises GGUFError.
    """
    trim = read_trim(draft)
    if trim is None or os.path.basename(trim.source) != trim.source or not trim.source:
        return ""
    source = os.path.join(os.path.dirname(draft.path), trim.source)
    try:
        if not os.path.isfile(source) or os.path.samefile(source, draft.path):
            return ""
        parts = read_model(source).parts
        if sum(map(os.path.getsize, parts)) != trim.source_bytes:
            return trim.source
        return trim.source if sha256_of(parts, lambda _share: None) != trim.source_sha256 else ""
    except IntegrityError:  # it is being changed, or is no model any more
        return trim.source
    except (OSError, NotFoundError, UsageError):  # it cannot be read
        return ""
