"""Control tokens that a call format puts into messages: as text with SHOWN before it, which no client can
write. Knows no template.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from specllama.text.detokenizer import SHOWN
from specllama.text.prompt_parts import PromptPart


def without_marks(value: Any) -> Any:
    """A copy of plain data without SHOWN."""
    if isinstance(value, str):
        return value.replace(SHOWN, "")
    if isinstance(value, Mapping):
        return {without_marks(k): without_marks(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_marks(v) for v in value]
    return value


def marked(text: str, tokens: Collection[str]) -> str:
    """A text of the format with its tokens marked."""
    if not tokens:
        return text
    longest = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True))
    return re.sub(longest, lambda match: SHOWN + match.group(), text)


def with_tokens(parts: Sequence[PromptPart], tokens: Collection[str]) -> list[PromptPart]:
    """The parts of a rendered prompt, in which marked tokens are control tokens."""
    if not any(SHOWN in part.text for part in parts):
        return list(parts)
    return list(_split(parts, tokens))


def _split(parts: Sequence[PromptPart], tokens: Collection[str]) -> Iterator[PromptPart]:
    longest = "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"
    pattern = re.compile(f"{SHOWN}({longest})|{SHOWN}")
    for part in parts:
        done = 0
        for match in pattern.finditer(part.text):
            yield from _part(part.text[done : match.start()], part.parse_special)
            yield from _part(match.group(1) or "", True)
            done = match.end()
        yield from _part(part.text[done:], part.parse_special)


def _part(text: str, special: bool) -> Iterator[PromptPart]:
    if text:
        yield PromptPart(text, special)
