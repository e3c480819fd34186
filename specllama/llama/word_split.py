"""How deep llama.cpp's split of a text into words recurses, and the limit on it.

Before BPE, llama.cpp splits a text by the regular expressions of the vocabulary's pre-tokenizer. Some have
hand-written splitters (unicode_regex_split_custom in its unicode.cpp); the others run in std::regex, which
recurses once per character of a match in GNU's library and ends the process when the stack is full. A match
ends where the kind of character changes, so the longest run of one kind bounds the recursion. Measured for
all pre-tokenizers: 270 to 560 bytes of stack per character. Knows nothing about tokens.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping

from specllama.errors import UsageError

_SAFE = frozenset(  # only hand-written splitters, or expressions that match a few characters
    {
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano", "dbrx", "smaug-bpe", "chatglm-bpe", "glm4", "glm5", "starcoder", "refact",
        "command-r", "smollm", "codeshell", "exaone", "exaone4", "minerva-7b", "mellum", "mellum2", "gpt-2",
        "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "modern-bert",
        "jina-v1-en", "jina-v2-code", "roberta-bpe", "mpt", "olmo", "jais", "trillion", "granite-docling",
        "stablelm2", "qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open",
        "qwen35", "chameleon", "kimi-k2", "grok-2", "laguna", "gemma4", "granite-embed-multi-311m",
        "sarvam-moe",
    }
)  # fmt: skip
_MAX_RUN = 100_000  # characters; two such runs may follow each other on the stack of text/large_stack.py
_SLOW: Mapping[str, int] = {"superbpe": 5_000, "jais-2": 20_000}  # quadratic in the length of a run
_SHORT_RUN = 1_000  # characters that fit into the stack of any thread

# Characters beyond ASCII count as any kind; in the scanned bytes they are question marks.
_ANY = "?"


def _table(kind: str) -> bytes:
    return bytes(ord("x") if chr(c) in kind + _ANY else ord(" ") for c in range(256))


_WORD, _NUMBER = _table(string.ascii_letters), _table(string.digits)
_BLANK, _OTHER = (
    _table(string.whitespace),
    _table(string.punctuation + "".join(map(chr, [*range(9), *range(14, 32), 127]))),
)
_NOT_BLANK = _table("".join(chr(c) for c in range(128) if chr(c) not in string.whitespace))
_SPACED_WORDS = _table(string.ascii_letters + " ")
_KINDS = (_WORD, _NUMBER, _BLANK, _OTHER)
_MORE: Mapping[str, tuple[bytes, ...]] = {
    "exaone-moe": (_SPACED_WORDS,),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish", "viking", "whitespace"), (_NOT_BLANK,)),
}


def pre_tokenizer(metadata: Callable[[str], str | None]) -> str:
    """The name of what splits texts before BPE. metadata: from a key of the file to its value."""
    if metadata("tokenizer.ggml.model") == "gemma4":  # it has only one
        return "gemma4"
    return metadata("tokenizer.ggml.pre") or "default"


class WordSplit:
    """The limits of one vocabulary. pre: its pre-tokenizer as the GGUF file names it, None for a vocabulary
    that is not split by expressions.
    """

    def __init__(self, pre: str | None) -> None:
        self._pre = pre
        self._limit = 0 if pre is None or pre in _SAFE else _SLOW.get(pre, _MAX_RUN)
        self._kinds = (*_KINDS, *_MORE.get(pre or "", ()))

    def needs_stack(self, text: str) -> bool:
        """Whether this text has to be split on a large stack. Raises UsageError for a text with a run that
        llama.cpp cannot split.
        """
        if not self._limit or len(text) <= _SHORT_RUN:
            return False
        data = text.replace(_ANY, "!").encode("ascii", "replace")
        long = [kind for kind in self._kinds if _has_run(data, kind, _SHORT_RUN)]
        if any(_has_run(data, kind, self._limit) for kind in long):
            raise UsageError(
                f"the text has more than {self._limit} characters in a row without a break, and "
                f"llama.cpp cannot split them into words for this model (pre-tokenizer {self._pre!r})",
                "break the text up with spaces or line breaks, or leave that part out",
            )
        return bool(long)


def _has_run(data: bytes, kind: bytes, length: int) -> bool:
    """Whether there are more than `length` characters of this kind in a row."""
    return b"x" * (length + 1) in data.translate(kind)
