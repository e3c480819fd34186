"""Around the rendering of a chat template: its variables, control tokens in messages, parts of the prompt.

Marks, private-use characters, distinguish the text of messages from that of the template: while the template
runs, one replaces each text of a message that must not be parsed as a control token. Fronts import it; it
knows nothing about Jinja.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from specllama.errors import UsageError, option
from specllama.json_types import JsonObject

Message = Mapping[str, Any]
MAX_CHARS = 4 * 1024 * 1024  # that a template writes beyond those of the messages
HINT = f"use {option('raw')}"  # where a template fails
_MAX_TOKEN_CHARS = 256  # of a control token
_FIRST, _LAST = 0xF0000, 0xFFFFD  # a Unicode plane of private-use characters
_MARK = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_MAX_CANDIDATES = 500_000  # positions in the messages at which a control text could begin
_FEW = 16  # texts; more of them are replaced in one pass
_ESCAPED = re.compile(r"\\U000f[0-9a-f]{4}|\\udb[89ab][0-9a-f]\\ud[c-f][0-9a-f]{2}")  # by Python, by JSON


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a rendered prompt. parse_special: whether control tokens are parsed in it."""

    text: str
    parse_special: bool


class ControlTexts:
    """Finds the texts of control tokens, maybe thousands; those of one character would match everywhere."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = frozenset(t for t in texts if len(t) > 1)
        self._lengths: dict[str, list[int]] = {}  # by the first two characters, longest first
        for start, length in sorted({(t[:2], len(t)) for t in self._texts}, reverse=True):
            self._lengths.setdefault(start, []).append(length)
        self.firsts = sorted({t[0] for t in self._texts})  # the first characters of all texts
        seconds = {
            a: "".join(re.escape(s[1]) for s in sorted(self._lengths) if s[0] == a) for a in self.firsts
        }
        starts = "|".join(f"{re.escape(a)}[{b}]" for a, b in seconds.items())
        self._starts = re.compile(starts or r"(?!)")
        self.private = frozenset(_MARK.findall("".join(self._texts)))

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """(begin, end) of each control text, from left to right; the longest of those with the same begin.

        Raises UsageError for a text in which too many positions could begin one.
        """
        done = begin = 0
        for _ in range(_MAX_CANDIDATES):
            match = self._starts.search(text, max(done, begin))
            if match is None:
                return
            begin = match.start()
            for length in self._lengths.get(text[begin : begin + 2], ()):
                if text[begin : begin + length] in self._texts:
                    done = begin + length
                    yield begin, done
                    break
            begin += 1
        raise _too_many()


class Marks:
    """The marks of one rendering.

    thorough: mark every character that a control text can begin with, so that the template cannot assemble
    one from pieces; else whole control texts only. taken: a text whose private-use characters are no marks.
    """

    def __init__(self, control: ControlTexts, thorough: bool = False, taken: str = "") -> None:
        self._control, self._thorough = control, thorough
        used = control.private.union(_MARK.findall(taken))
        self._free = (chr(c) for c in range(_FIRST, _LAST + 1) if chr(c) not in used)
        self._marks: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        self._escapes = True  # whether an escape of a mark in the rendered text must come from a mark
        self._n_loose = 0

    @property
    def loose(self) -> bool:
        """Whether an unmarked character could begin a control text."""
        return self._n_loose > 0

    def hide(self, value: Any) -> Any:
        """A copy of plain data with marks. Raises UsageError if there are not enough marks."""
        if isinstance(value, str):
            return self._hidden(value)
        if isinstance(value, Mapping):
            # Templates compare roles and keys with words that may also be tokens of the vocabulary.
            return {
                k if _is_word(k) else self.hide(k): v if k == "role" and _is_word(v) else self.hide(v)
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.hide(v) for v in value]
        return value

    def parts(self, rendered: str) -> list[PromptPart]:
        """The rendered text with each mark replaced by its text.

        The text between two control tokens of the template remains one part, and is tokenised as a whole.
        """
        if self._escapes and self._texts:
            rendered = _ESCAPED.sub(self._unescaped, rendered)
        if not any(m.group() in self._texts for m in _MARK.finditer(rendered)):
            return [PromptPart(rendered, True)]
        return list(_joined(self._spans(rendered)))

    def _hidden(self, text: str) -> str:
        if not text.isascii():
            text = _MARK.sub(lambda m: self._mark(m.group()), text)
        self._escapes = self._escapes and not _ESCAPED.search(text)
        if self._thorough:
            for first in self._control.firsts:
                if first in text:
                    text = text.replace(first, self._mark(first))
            return text
        out, done = [], 0
        for begin, end in self._control.find(text):
            out += [text[done:begin], self._mark(text[begin:end])]
            done = end
        shown = "".join([*out, text[done:]])
        self._n_loose += sum(map(shown.count, self._control.firsts))
        if self._n_loose > _MAX_CANDIDATES:
            raise _too_many()
        return shown

    def _mark(self, text: str) -> str:
        if text not in self._marks:
            mark = next(self._free, None)
            if mark is None:
                raise UsageError("the messages contain too many different texts of control tokens")
            self._marks[text], self._texts[mark] = mark, text
        return self._marks[text]

    def _unescaped(self, match: re.Match[str]) -> str:
        """The mark for an escape in Python's or JSON's syntax that the template has written."""
        mark = (
            str(json.loads(f'"{match.group()}"'))
            if match.group()[1] == "u"
            else chr(int(match.group()[2:], 16))
        )
        return mark if mark in self._texts else match.group()

    def _spans(self, rendered: str) -> Iterator[PromptPart]:
        """The control tokens of the template, and the text between them; no mark is part of the former."""
        done = 0
        for begin, end in self._control.find(rendered):
            yield PromptPart(self._unmarked(rendered[done:begin]), False)
            yield PromptPart(rendered[begin:end], True)
            done = end
        yield PromptPart(self._unmarked(rendered[done:]), False)

    def _unmarked(self, text: str) -> str:
        if text.isascii():
            return text
        if len(self._texts) > _FEW or any(map(_MARK.search, self._texts.values())):
            return text.translate({ord(mark): shown for mark, shown in self._texts.items()})
        for mark, shown in self._texts.items():
            text = text.replace(mark, shown)
        return text


def _too_many() -> UsageError:
    return UsageError(f"the text has more than {_MAX_CANDIDATES} places that look like control tokens")


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _joined(spans: Iterable[PromptPart]) -> Iterator[PromptPart]:
    for special, group in itertools.groupby((s for s in spans if s.text), key=lambda s: s.parse_special):
        yield PromptPart("".join(s.text for s in group), special)


def nested_too_deeply() -> UsageError:
    """The error for messages that cannot be rendered for their depth."""
    return UsageError("the messages are nested too deeply")


def encode(
    parts: Sequence[PromptPart],
    tokenize: Callable[[str, bool, bool], list[int]],
    bos_text: str,
    adds_bos: bool,
) -> list[int]:
    """The ids of rendered parts: control tokens are parsed only in text of the template, and BOS is added
    unless the template has written it.

    tokenize: from (text, add_special, parse_special) to ids. bos_text: "" for none. adds_bos: whether BOS is
    to be added according to the vocabulary.
    """
    ids: list[int] = []
    begins = bool(parts) and bool(bos_text) and parts[0].parse_special and parts[0].text.startswith(bos_text)
    for i, part in enumerate(parts):
        text = part.text
        if i and parts[i - 1].parse_special and text[:1].isspace() and not part.parse_special:
            # Some control tokens absorb the whitespace that follows them.
            blanks, token = text[: -len(text.lstrip())] or text, parts[i - 1].text[-_MAX_TOKEN_CHARS:]
            if tokenize(token + blanks, False, True) == tokenize(token, False, True):
                text = text[len(blanks) :]
        ids += tokenize(text, i == 0 and adds_bos and not begins, part.parse_special)
    return ids


def template_variables(given: Mapping[str, Any] | None) -> JsonObject:
    """A checked copy of chat_template_kwargs. Raises UsageError."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError("chat_template_kwargs must be a dict of names and values")
    if taken := {"messages", "self"} & set(given):
        raise UsageError(f"chat_template_kwargs cannot set {taken.pop()!r}")
    thinking = given.get("enable_thinking")
    if not isinstance(thinking, (bool, NoneType)):  # a template would take the text "false" for true
        raise UsageError(f"chat_template_kwargs: enable_thinking must be true or false, not {thinking!r:.80}")
    return dict(given)


def reasoning_variables(mode: str) -> JsonObject:
    """The variables for the option "reasoning"; "auto": the template decides. Raises UsageError."""
    if mode not in ("on", "off", "auto"):
        raise UsageError(f"{option('reasoning')} must be on, off or auto, not {mode!r}")
    return {} if mode == "auto" else {"enable_thinking": mode == "on"}


def effort_variables(effort: str | None) -> JsonObject:
    """The variables for an API's reasoning effort. "none" also switches reasoning off where templates can."""
    if not effort:
        return {}
    return {"reasoning_effort": effort} | ({"enable_thinking": False} if effort == "none" else {})
