"""The prompt of `run`: what is typed, in a file, and piped to standard input.

Knows which words look like the name of a model, which other programs take in the prompt's place.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.cli import console
from specllama.config.escapes import unescaped
from specllama.config.text_file import STDIN, read_text, standard_input, without_last_newline
from specllama.errors import UsageError

_SLOW = 2.0  # seconds without an end of standard input, after which a line says what is waited for
# llama3.2, qwen3:8b, gemma-3-4b, user/repo, main.gguf: a letter and a digit, or a place, and no blank
_MODEL = re.compile(
    r"(?=\S*[a-z])(?:[\w.-]*[a-zA-Z-]\d[\w.:-]*|[\w.-]+:[\w.-]+|[\w.:/-]+/[\w.:-]+|\S+\.gguf)"
)


def typed_prompt(values: Mapping[str, Any]) -> str:
    """The prompt: that of -p or the words, then the file's, then standard input's where it is no terminal;
    with --raw nothing stands between them, else an empty line. Raises UsageError, NotFoundError.
    """
    typed = _typed(values)
    parts = [] if typed is None else [typed]
    if "file" in values:
        text = without_last_newline(read_text(values["file"], "file"))
        parts.append(unescaped(text, "file") if values.get("escape") else text)
    if values.get("file") != STDIN and not standard_input.taken_by:
        parts += _piped(bool(parts))
    if not parts:
        raise UsageError(
            "there is no prompt", 'give one: specllama run -p "..." (or -f FILE, or on standard input)'
        )
    return ("" if values.get("raw") else "\n\n").join(parts)


def _typed(values: Mapping[str, Any]) -> str | None:
    """The prompt on the command line. Raises UsageError for a word that is a model's name."""
    words: Sequence[str] = values.get("words", ())
    if words and "prompt" in values:
        shown = " ".join(words)[:60]
        raise UsageError(
            f"there are two prompts: that of -p and {shown!r}", "put the whole prompt in quotation marks"
        )
    if words and _MODEL.fullmatch(words[0]):
        rest = " ".join(words[1:]) or "..."
        raise UsageError(
            f"{words[0]!r} looks like the name of a model, and a prompt is expected here",
            f'specllama run -m {words[0]} -p "{rest}", or specllama chat -m {words[0]}; '
            "-p makes any text a prompt",
        )
    return " ".join(words) if words else values.get("prompt")


def _piped(has_prompt: bool) -> list[str]:
    """What is piped to standard input, without a newline at its end; nothing if it is a terminal, or empty
    and not the only prompt. Raises UsageError.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return []
    slow = threading.Timer(_SLOW, console.note, ["waiting for the end of standard input (< /dev/null: none)"])
    slow.daemon = True
    slow.start()
    try:
        text = without_last_newline(standard_input.read("the prompt"))
    finally:
        slow.cancel()
    return [] if has_prompt and not text.strip() else [text]
