"""The defaults of options: the only table, for the commands, Python and the server.

The defaults of sampling parameters are in core/sampling/params.py. Context length, threads and GPU layers are
chosen when models are loaded, from the model and the machine.
"""

from __future__ import annotations

import ipaddress
from typing import Literal

from specllama.drafters import REGISTRY, wants_draft_model, words

DRAFTERS = tuple(reversed(words()))  # all; the one with the highest cost and gain first
SOURCE_LABELS = {name: entry.label for name, entry in REGISTRY.items()}  # of drafted tokens, for output
DRAFT_MODEL = "auto"  # the known draft for the target, if it is on disk
DRAFT_MAX: Literal["auto"] = "auto"  # decided by measured costs
LAYERS: Literal["auto"] = "auto"  # all that fit, the target's first
N_CTX_DEFAULT = 8192  # unless the model was trained on fewer tokens, or fewer fit
N_BATCH, N_UBATCH = 2048, 512
CACHE_TYPE = "f16"

SERVED_SLOTS = 4  # of a server and of an LLM in Python; a command that generates one text has one slot
HOST, PORT = "127.0.0.1", 8080
UNIX = "unix:"  # of an address that is the path of a socket
QUEUE = 64
MODELS_MAX = 4  # in a server's memory at once
CACHE_DISK_BYTES, CACHE_DISK_SHARE = 8_000_000_000, 0.1  # at most, and of the free disk
KEPT_SECONDS = 1.0  # that reading a prompt again would take, from which on chat and serve keep it on disk
KEPT_SECONDS_OF_RUN = 5.0  # the same in `run`, whose prompts seldom come again
TIMEOUT_SECONDS, DRAIN_SECONDS, CLIENT_SECONDS = 3600.0, 30.0, 30.0


def is_draft_model(drafter: str) -> bool:
    return wants_draft_model((drafter,))


def source_label(source: str) -> str:
    """How output names the source of a token: a drafter's label; other sources are returned unchanged."""
    return SOURCE_LABELS.get(source, source)


def from_here(url: str) -> str:
    """A server's address for this machine's programs: 0.0.0.0 and :: stand for all that the machine has."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only."""
    if host.lower() == "localhost" or host.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
