"""For tests of call formats: tools, a vocabulary of bytes and control tokens, and answers that are read."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specllama.calls.format import AnswerShape, CallFormat
from specllama.calls.scanner import ArgumentsPiece, ClosePiece, OpenPiece, Piece, TextPiece, ThoughtPiece
from specllama.calls.tools import Tool, Tools
from specllama.text.detokenizer import SHOWN

Call = tuple[str, dict[str, Any]]
WEATHER = Tool(
    "weather",
    "The weather of a place",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "days": {"type": "integer"},
            "units": {"type": "string", "enum": ["C", "F"]},
            "when": {"type": "array", "items": {"type": "string"}},
            "near": {"type": "object", "properties": {"exact": {"type": "boolean"}}, "required": ["exact"]},
            "zip": {"type": ["string", "null"]},
        },
        "required": ["city"],
    },
)
NOW = Tool("now", "The time")
TOOLS = [WEATHER, NOW]
FULL: Call = (
    "weather",
    {"city": "Paris é", "days": 3, "units": "C", "when": ["a", "b"], "near": {"exact": True}, "zip": None},
)
CALLS: list[Call] = [FULL, ("now", {}), ("weather", {"city": "a\n b", "zip": "x"})]


class ByteVocabulary:
    """256 tokens of one byte, an end token, and control tokens. ids: of the control tokens by their texts."""

    bos_token_id, eos_token_id = None, 256

    def __init__(self, special: Collection[str] = ()) -> None:
        self.ids = {text: 257 + i for i, text in enumerate(sorted(special))}
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>", *map(str.encode, self.ids)]
        self.special_token_ids = [256, *self.ids.values()]
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which control tokens have SHOWN before them."""
        known = "|".join(re.escape(t) for t in sorted(self.ids, key=len, reverse=True)) or "(?!)"
        ids, done = list[int](), 0
        for found in re.finditer(f"{SHOWN}({known})", text):
            ids += [*text[done : found.start()].encode(), self.ids[found[1]]]
            done = found.end()
        return ids + list(text[done:].encode())


class Grammar:
    """A grammar that is stepped with texts."""

    def __init__(self, source: str, vocabulary: ByteVocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(source), log_level=0)
        assert not self._matcher.is_error(), f"{self._matcher.get_error()}\n{source}"

    def accepted(self, text: str) -> tuple[int, bool]:
        """(Number of the text's tokens that are legal, whether it may end after them)."""
        matcher = self._matcher.deep_copy()
        n = matcher.try_consume_tokens(self._vocabulary.encode(text))
        assert not matcher.is_error(), matcher.get_error()
        return n, matcher.is_accepting()

    def accepts(self, text: str) -> bool:
        """Whether a text is a complete answer."""
        return self.accepted(text) == (len(self._vocabulary.encode(text)), True)

    def begins(self, text: str) -> bool:
        """Whether an answer may begin with a text."""
        return self.accepted(text)[0] == len(self._vocabulary.encode(text))

    def ends(self, text: str) -> list[int]:
        """After how many tokens of a text an answer may end."""
        matcher, found = self._matcher.deep_copy(), list[int]()
        for n, token in enumerate([None, *self._vocabulary.encode(text)]):
            if token is not None and matcher.try_consume_tokens([token]) != 1:
                break
            if matcher.is_accepting():
                found.append(n)
        return found

    def forced(self, text: str) -> str:
        """What must follow a text."""
        matcher = self._matcher.deep_copy()
        assert matcher.try_consume_tokens(ids := self._vocabulary.encode(text)) == len(ids), text
        return matcher.compute_ff_bytes().decode("utf-8", "replace")


def grammar(form: CallFormat, tools: Tools, special: Collection[str] = (), **shape: Any) -> Grammar:
    """The grammar of a format for a vocabulary with these control tokens."""
    vocabulary = _vocabulary(tuple(sorted(special)))
    return _compiled(form.grammar(tools, AnswerShape(special=vocabulary.ids, **shape)), vocabulary)


_vocabulary = functools.cache(ByteVocabulary)  # compiling takes longer than what is asked of most grammars
_compiled = functools.lru_cache(maxsize=256)(Grammar)


def pieces(
    form: CallFormat, tools: Tools, parts: Iterable[str], special: Collection[str] | None = None
) -> list[Piece]:
    """The pieces of an answer that arrives in parts; neighbours of the same kind are joined."""
    reader, found = form.reader(tools, special), list[Piece]()
    read = [piece for part in parts for piece in reader.push(part, [(len(part), "target")])]
    for piece in read + list(reader.finish()):
        if isinstance(piece, (TextPiece, ArgumentsPiece, ThoughtPiece)):
            assert piece.text
            assert SHOWN not in piece.text
            if not isinstance(piece, ArgumentsPiece):
                assert sum(n for n, _ in piece.runs) == len(piece.text)
            piece = type(piece)(piece.text)
            if found and isinstance(last := found[-1], type(piece)):
                found[-1] = type(piece)(last.text + piece.text)
                continue
        found.append(piece)
    return found


def read(
    form: CallFormat, tools: Tools, text: str, special: Collection[str] | None = None
) -> tuple[str, list[Call]]:
    """(Text, complete calls) of an answer; each complete call has a known name and an object."""
    kept, calls, open_call = "", list[Call](), None
    for piece in pieces(form, tools, [text], special):
        if isinstance(piece, TextPiece):
            kept += piece.text
        elif isinstance(piece, OpenPiece):
            assert piece.name in [tool.name for tool in tools.allowed]
            open_call = [piece.name, ""]
        elif isinstance(piece, ArgumentsPiece):
            assert open_call is not None
            open_call[1] += piece.text
        elif isinstance(piece, ClosePiece):
            assert open_call is not None
            arguments = json.loads(open_call[1])
            assert isinstance(arguments, dict)
            calls.append((open_call[0], arguments))
            open_call = None
    return kept, calls


def cuts(text: str) -> list[Sequence[str]]:
    """A text whole, in characters, and cut in two everywhere."""
    return [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]


def turns(calls: Sequence[Call], content: str = "") -> list[dict[str, Any]]:
    """A conversation with calls and their results, in the internal form."""
    ids = [f"call_{i:024}" for i in itertools.islice(itertools.count(), len(calls))]
    made = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, (name, arguments) in zip(ids, calls, strict=True)
    ]
    results = [
        {"role": "tool", "tool_call_id": i, "name": name, "content": f"RESULT {n}"}
        for n, (i, (name, _)) in enumerate(zip(ids, calls, strict=True))
    ]
    return [
        {"role": "user", "content": "QUESTION"},
        {"role": "assistant", "content": content, "tool_calls": made},
        *results,
    ]
