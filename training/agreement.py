"""How often two models choose the same token, on texts that the target writes for prompts as in training.

Knows nothing about files or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.bench.llm import Llm

CODE = """```python
def split(path, sep="/"):
    head, _, tail = path.rpartition(sep)
    if head != sep * len(head):
        head = head.rstrip(sep)
    return head, tail
```"""
COUNT = """```python
def count(items, key=None):
    total = {}
    for item in items:
        name = key(item) if key else item
        total[name] = total.get(name, 0) + 1
    return total
```"""
PROMPTS = {
    "explain": [
        "What does os.path.join do?",
        "Explain json.dumps.",
        "What is collections.Counter for?",
        "How does re.sub work?",
    ],
    "source": ["Show the source of textwrap.indent.", "Write the Python code of shlex.quote."],
    "edit": [
        f"Rename `path` to `source` in this code:\n{CODE}",
        f"In the code below, rename the variable items to record.\n{COUNT}",
    ],
    "json": [
        "Turn this into JSON: name Ada Lovelace, age 36, city London, job engineer",
        "Extract the fields as JSON.\nid 4711, name Ken Thompson, active true",
        f"Give the signature of this function as JSON:\n{COUNT}",
    ],
    "repeat": [f"Repeat this:\n{CODE}", f"Say it again:\n{COUNT}"],
}
N_WRITTEN = 160  # most tokens per prompt


class Text(NamedTuple):
    """A prompt and the reference model's answer, as ids; n_prompt: where the answer begins."""

    kind: str
    tokens: list[int]
    n_prompt: int


def write_texts(reference: Llm) -> list[Text]:
    """Greedy answers of the model to all prompts, through ChatML."""
    texts = []
    for kind, prompts in PROMPTS.items():
        for prompt in prompts:
            ids = reference.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
            texts.append(Text(kind, ids + reference.greedy(ids, N_WRITTEN), len(ids)))
    return texts


def choices(llm: Llm, texts: Sequence[Text]) -> list[NDArray[np.int64]]:
    """For each text the model's choice at every token of the answer, after the text before it."""
    return [llm.choices(t.tokens)[t.n_prompt - 1 : -1] for t in texts]


def agreement(a: Sequence[NDArray[np.int64]], b: Sequence[NDArray[np.int64]]) -> float:
    """The share of positions at which both choose the same token."""
    return float((np.concatenate(a) == np.concatenate(b)).mean())


def by_kind(
    texts: Sequence[Text], a: Sequence[NDArray[np.int64]], b: Sequence[NDArray[np.int64]]
) -> dict[str, float]:
    """`agreement` for each kind of prompt."""
    at = {kind: [i for i, t in enumerate(texts) if t.kind == kind] for kind in PROMPTS}
    return {kind: agreement([a[i] for i in rows], [b[i] for i in rows]) for kind, rows in at.items()}
