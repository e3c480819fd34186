"""What holds where nobody sets an option: the one table, for the commands, Python and the server.

Sampling parameters have their defaults in core/sampling/params.py. The context's length, threads and layers
of the GPU are chosen when models are loaded, from the model and the machine.
"""

from __future__ import annotations

from typing import Literal

from specllama.drafters import REGISTRY, wants_draft_model, words

DRAFTERS = tuple(reversed(words()))  # all; the one that costs most, and gains most, first
SOURCE_LABELS = {name: entry.label for name, entry in REGISTRY.items()}  # of drafted tokens, for read-outs
DRAFT_MODEL = "auto"  # the draft that is known for the target, if it is on disk
DRAFT_MAX: Literal["auto"] = "auto"  # by measured cost
LAYERS: Literal["auto"] = "auto"  # all that fit, the target's first
N_BATCH, N_UBATCH = 2048, 512
CACHE_TYPE = "f16"

SERVED_SLOTS = 4  # of a server and of an LLM in Python; a command that writes one text has one
HOST, PORT = "127.0.0.1", 8080
QUEUE = 64
TIMEOUT_SECONDS, DRAIN_SECONDS, CLIENT_SECONDS = 3600.0, 30.0, 30.0


def is_draft_model(drafter: str) -> bool:
    """Whether the drafter of this name is a draft model."""
    return wants_draft_model((drafter,))


def drafter_word(source: str) -> str:
    """The word of the option `drafters` for the source of a token; other sources stay as they are."""
    return REGISTRY[source].word if source in REGISTRY else source
