"""Whether the file that a draft was trimmed from has changed since."""

from __future__ import annotations

import os

from specllama.errors import IntegrityError
from specllama.gguf.header import Header
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
        if os.path.getsize(source) != trim.source_bytes:
            return trim.source
        return trim.source if sha256_of([source], lambda _share: None) != trim.source_sha256 else ""
    except IntegrityError:  # it is being changed
        return trim.source
    except OSError:
        return ""
