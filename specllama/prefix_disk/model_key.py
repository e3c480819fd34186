"""The key of a model: a hash of everything that could change a state. Anything else than equal is a miss.

Files are known by their `FileIdentity`. What else belongs to a key is known to those who load models, and
given as facts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.gguf.identity import FileIdentity

VERSION = 1  # of the facts: another one is another key
_ENVIRONMENT = re.compile(r"(GGML|LLAMA)_(?!ARG_)\w+")  # what llama.cpp may read while it computes


def model_key(
    files: Iterable[FileIdentity], facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> str:
    """The key, 32 hexadecimal digits. files: of the model and its adapters, in order. facts: all settings and
    properties of the build and the machine that could change a state, as JSON can hold them.
    """
    variables = {name: value for name, value in environ.items() if _ENVIRONMENT.fullmatch(name)}
    known = [[file.content, file.whole] for file in files]
    plain = {"version": VERSION, "files": known, "facts": facts, "environment": variables}
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
