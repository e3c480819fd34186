"""Whose a state is: a name for each API key that says nothing about the key.

The name of a key depends on the key and on the secret of the directory, and not on its place in a list of
keys, which may be another one after a restart. Knows no requests.
"""

from __future__ import annotations

import hashlib

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
