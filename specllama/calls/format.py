"""The interface of a call format: a family's way of writing tool calls.

One definition gives the prompt's form, the grammar and the reader. Knows no API and no engine.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from specllama.calls import history
from specllama.calls.scanner import CallReader
from specllama.calls.tools import Tools
from specllama.json_types import JsonObject
from specllama.text.detokenizer import SHOWN
from specllama.text.prompt_parts import PromptPart


@dataclass(frozen=True, slots=True)
class TemplateData:
    """The input of a chat template: messages, and further variables."""

    messages: history.Messages
    variables: JsonObject


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The parts of an answer that a grammar has to allow before and besides calls.

    reasoning: (opening tag, closing tag) of the reasoning before the answer, None for a model without one.
    opened: whether the prompt has opened it. begun: whether the answer comes at once, because the prompt ends
    after the reasoning or with the beginning of the answer. text: Lark of the text of an answer without calls
    that must obey a schema, "" for free text. special: ids of the vocabulary's control tokens by text.
    """

    reasoning: tuple[str, str] | None = None
    opened: bool = False
    begun: bool = False
    text: str = ""
    special: Mapping[str, int] = field(default_factory=dict)


class CallFormat(ABC):
    """One family's format.

    name: of the option tool_format. markers: texts of which a chat template of the family contains all.
    tokens: texts in calls that are control tokens in the family's vocabularies; the writer shows them where a
    reader looks for them, with `text.detokenizer.SHOWN` before each. reasons: whether models of the family
    reason in a way of their own, in channels, which the reader reads; it is then used for answers without
    tools too. thinks: the tags around that reasoning, None for a family without them. begin: what precedes
    the text of an answer, where the client has begun it; begin_thought: what stands before and after its
    reasoning, () for what the template shows, or `thinks`. end_thought: what ends a part of the reasoning,
    and what follows before the next part of the answer; () for `thinks`. without_tools: variables that the
    family's templates need where no tools are shown. headers: the tokens with which headers of parts of an
    answer begin, and the text with which they end; None without headers. described: whether tools, calls and
    results are written as text whatever the template shows.
    """

    name: str
    markers: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    reasons: bool = False
    thinks: tuple[str, str] | None = None
    begin: str = ""
    begin_thought: tuple[str, str] | tuple[()] = ()
    end_thought: tuple[str, str] | tuple[()] = ()
    without_tools: ClassVar[Mapping[str, Any]] = {}
    headers: tuple[tuple[str, ...], str] | None = None
    described: bool = False

    def matches(self, template: str) -> bool:
        return bool(self.markers) and all(marker in template for marker in self.markers)

    def template_input(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools | None,
        own: bool,
        *,
        calls: bool | None = None,
        system: bool = True,
        special: Collection[str] = (),
    ) -> TemplateData:
        """Messages and tools as templates of the family read them.

        own: whether the model's template shows tools; otherwise they are described in a message. calls:
        whether it shows calls and results; otherwise they are written as text (None: as it shows tools).
        system: whether it accepts system messages. special: those of `tokens` that are control tokens of the
        vocabulary; in text that is written here they have SHOWN before them, for `with_tokens`.

        messages: in the form of the OpenAI API, but the arguments of calls are objects.
        """

        def write(some: Sequence[history.Call]) -> str:
            return self.write(some, special)

        own = own and not self.described
        shows_calls = (own if calls is None else calls) and not self.described
        given = without_marks(messages) if special else messages
        # Templates ask whether the key of calls is there.
        rewritten = [{k: v for k, v in m.items() if k != "tool_calls" or v} for m in given]
        rewritten = self.fixed(rewritten) if shows_calls else history.calls_as_text(rewritten, write)
        if own:
            return TemplateData(rewritten, history.functions(tools))
        rewritten = rewritten if shows_calls else history.results_as_text(rewritten)
        return TemplateData(history.with_tools(rewritten, tools, write, system), {})

    def fixed(self, messages: history.Messages) -> history.Messages:
        """The messages as the family's own templates need them."""
        return messages

    @abstractmethod
    def write(self, calls: Sequence[history.Call], special: Collection[str] = ()) -> str:
        """Calls as the model writes them, with SHOWN before the tokens in `special`."""

    @abstractmethod
    def grammar(self, tools: Tools, shape: AnswerShape) -> str:
        """A Lark grammar of llguidance for the answer. Raises UsageError for a schema that cannot be used."""

    @abstractmethod
    def reader(self, tools: Tools, special: Collection[str] | None = None) -> CallReader:
        """A reader for one answer. special: those of `tokens` that are control tokens of the vocabulary,
        which are found only with SHOWN before them; None: not known, the letters count too.
        """


def without_marks(value: Any) -> Any:
    """A copy of plain data without SHOWN."""
    if isinstance(value, str):
        return value.replace(SHOWN, "")
    if isinstance(value, Mapping):
        return {without_marks(k): without_marks(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_marks(v) for v in value]
    return value


def _any_of(tokens: Collection[str]) -> str:
    return "|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)) or "(?!)"


def marked(text: str, tokens: Collection[str]) -> str:
    """A text of the format with SHOWN, which no client can write, before its control tokens."""
    return re.sub(_any_of(tokens), lambda match: SHOWN + match.group(), text)


def with_tokens(parts: Sequence[PromptPart], tokens: Collection[str]) -> list[PromptPart]:
    """The parts of a rendered prompt, in which marked tokens are control tokens."""
    pattern, split = re.compile(f"{SHOWN}({_any_of(tokens)})|{SHOWN}"), list[PromptPart]()
    for part in parts:
        done = 0
        for match in pattern.finditer(part.text):
            split += [replace(part, text=part.text[done : match.start()]), PromptPart(match[1] or "", True)]
            done = match.end()
        split.append(replace(part, text=part.text[done:]))
    return [part for part in split if part.text]
