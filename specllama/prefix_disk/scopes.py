"""The owner and the model of a state: names that say nothing about API keys and texts.

The name of a key depends on the key and on the secret of the directory, and not on its place in a list of
keys, which may be another one after a restart. Knows no requests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.gguf.header import FileIdentity

LOCAL = "local"  # run and chat, on the user's own behalf
OPEN = "open"  # clients of a server that needs no key
SHARED = "shared"  # all keys of a server that shares evaluated prompts between them


def scope_of(api_key: str, secret: bytes) -> str:
    """The scope of an API key: 32 hexadecimal digits. secret: of the directory."""
    digest = hashlib.blake2b(
        api_key.encode("utf-8", "surrogateescape"), digest_size=16, key=secret, person=b"prefix scope"
    )
    return digest.hexdigest()


def state_name(key: str, scope: str, kind: str, ids: bytes, secret: bytes) -> str:
    """The name of the file of a state: the same state has the same one, and it tells nobody the text."""
    digest = hashlib.blake2b(digest_size=16, key=secret, person=b"prefix name")
    for part in (key.encode(), scope.encode(), kind.encode(), ids):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return f"{digest.hexdigest()}.state"


_FACTS_VERSION = 1  # another one is another key
_ENVIRONMENT = re.compile(r"(GGML|LLAMA)_(?!ARG_)\w+")  # what llama.cpp may read while it computes


def model_key(
    files: Iterable[FileIdentity], facts: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> str:
    """The key of a model, 32 hexadecimal digits: a hash of everything that could change a state. Anything
    else than equal is a miss. files: of the model and its adapters, in order. facts: all settings and
    properties of the build and the machine that could change a state, as JSON can hold them.
    """
    variables = {name: value for name, value in environ.items() if _ENVIRONMENT.fullmatch(name)}
    known = [[file.content, file.whole] for file in files]
    plain = {"version": _FACTS_VERSION, "files": known, "facts": facts, "environment": variables}
    text = json.dumps(plain, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
