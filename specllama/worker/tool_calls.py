"""How a loaded model is shown tools and calls them: its format, its template, its control tokens."""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from specllama.calls.abilities import Abilities, abilities, rendered, rendered_text
from specllama.calls.format import AnswerShape, CallFormat, Lark, TemplateData, with_tokens
from specllama.calls.formats import choose, named
from specllama.calls.history import reasoning_apart
from specllama.calls.schema import answer_text, notes
from specllama.calls.tools import NO_TOOLS, Tools
from specllama.client import protocol
from specllama.core.sampling.params import SamplingParams
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.text.detokenizer import SHOWN, Headers
from specllama.text.prompt_parts import PromptPart
from specllama.text.reasoning import TAGS, closing_tag, is_over, thought_apart
from specllama.text.reasoning_budget import EFFORTS, ReasoningForm, ReasoningTags
from specllama.text.template_process import IsolatedTemplate

_KEPT = 512  # sets of schemas of which was said what is not enforced


class ToolCalls:
    """The tool calls of one loaded model. source: its chat template, "" without one; template: compiled, None
    where it cannot be used. tool_format: the name of a format, "auto" for that of the template. Raises
    UsageError for an unknown name.
    """

    def __init__(
        self, model: LlamaModel, source: str, template: IsolatedTemplate | None, tool_format: str = "auto"
    ) -> None:
        self._model, self._template = model, template
        own = choose(source)
        self.format: CallFormat = own if tool_format == "auto" else named(tool_format)
        self._channels = own if own.reasons else self.format
        self._without_tools, self._has_efforts = own.without_tools, "reasoning_effort" in source
        self._reasoning = next(((a, b) for a, b in TAGS.items() if a in source), None)
        self._noted: OrderedDict[int, None] = OrderedDict()  # hashes of schemas
        self._lock = threading.Lock()

    @property
    def reasons(self) -> bool:
        """Whether the template knows reasoning."""
        return self._reasoning is not None or self._channels.reasons

    @functools.cached_property
    def abilities(self) -> Abilities:
        template = self._template
        if template is None:
            return Abilities(False, False, False)
        return abilities(
            self.format,
            lambda data: "".join(
                p.text for p in template.render(data.messages, **{**self._without_tools, **data.variables})
            ),
        )

    @property
    def tokens(self) -> list[str]:
        """The texts of calls and channels that are control tokens of the vocabulary."""
        return [text for text in self._texts if text in self._special]

    @property
    def _texts(self) -> list[str]:
        return list(dict.fromkeys((*self.format.tokens, *self._channels.tokens)))

    def render(
        self,
        template: IsolatedTemplate,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Tools | None,
        thought: str = "",
    ) -> list[PromptPart]:
        """The prompt of messages and tools. thought: see `continued`. Raises TemplateError, UsageError."""
        if self._channels.reasons:
            messages = reasoning_apart(messages)
        variables = {**self._without_tools, **variables}
        if thought:
            variables["enable_thinking"] = True

        def render(data: TemplateData) -> list[PromptPart]:
            return template.render(data.messages, **{**variables, **data.variables})

        if tools is None and not any(m.get("tool_calls") or m.get("role") == "tool" for m in messages):
            return rendered_text(self.abilities, messages, render)
        parts = rendered(self.format, self.abilities, messages, tools, render, self.tokens)
        return with_tokens(parts, self.tokens)

    def grammar(
        self, tools: Tools | None, params: SamplingParams, closing_tag: str, begun: bool = False
    ) -> str | None:
        """The Lark grammar of an answer with tools, or of JSON after reasoning or in a channel; None where
        neither is asked for. closing_tag: of the reasoning that the prompt has opened, "" for none. begun:
        whether the answer comes without reasoning, because the prompt ends after it. Raises UsageError.
        """
        if tools is None:
            if params.json_schema is None:
                return None
            if self._channels.reasons:
                return self._channels.grammar(NO_TOOLS, self._shape(params, closing_tag, begun))
            if not closing_tag:
                return None
            shape = self._shape(params, closing_tag)
            return Lark(shape).answer(shape.text, capped=False)
        if params.grammar is not None:
            raise UsageError("tools and a grammar cannot be used together", "give one of them")
        return self.format.grammar(tools, self._shape(params, closing_tag, begun))

    def note(self, tools: Tools) -> str:
        """One line about the parts of these tools' schemas that the grammar does not enforce; "" for none,
        and where it was said before. Raises UsageError as `grammar` does.
        """
        if not self._is_new(json.dumps([(tool.name, tool.parameters) for tool in tools.allowed])):
            return ""
        all_notes = notes(tools)
        more = f"; nor are those of {len(all_notes) - 1} more" if len(all_notes) > 1 else ""
        return f"{all_notes[0].message}{more}" if all_notes else ""

    def note_answer(self, schema: str, problem: str) -> str:
        """The parts of a schema that are not enforced; "" for none, and where that was said before."""
        if not problem or not self._is_new(f"{problem}\n{schema}"):
            return ""
        return f"the text is not held to its whole schema: {problem}"

    def _is_new(self, text: str) -> bool:
        """Whether it is the first time that something is said about this text."""
        key = hash(text)
        with self._lock:
            known = key in self._noted
            self._noted[key] = None
            self._noted.move_to_end(key)
            if len(self._noted) > _KEPT:
                self._noted.popitem(last=False)
        return not known

    def _shape(self, params: SamplingParams, closing_tag: str, begun: bool = False) -> AnswerShape:
        text = ""
        if params.json_schema is not None:
            text = answer_text(params.json_schema)
        reasoning = self._reasoning
        if closing_tag:
            reasoning = next((a, b) for a, b in TAGS.items() if b == closing_tag)
        return AnswerShape(reasoning, bool(closing_tag), begun, text, self._special)

    def shown(self, tools: Tools | None) -> Mapping[int, str]:
        """Control tokens by id that begin or end calls and reasoning, and are written into the output."""
        if tools is None and not self._channels.reasons:
            return self._shown_tags
        texts = self._texts if tools is not None else self._channels.tokens
        marked = {id_: SHOWN + text for text, id_ in self._special.items() if text in texts}
        return {**self._shown_tags, **marked}

    @property
    def headers(self) -> Headers | None:
        if self._channels.headers is None:
            return None
        begins, ends = self._channels.headers
        return Headers([self._written(text) for text in begins], self._written(ends))

    def _written(self, text: str) -> str:
        """A token of the format as it stands in the output; llama.cpp makes gpt-oss's ordinary ones."""
        return SHOWN + text if text in self._special else text

    def reasoning_is_over(self, prompt: str) -> bool:
        """Whether a prompt ends after reasoning, so that there is none in the answer."""
        return is_over(prompt, self._channels.thinks)

    def continued(
        self, template: IsolatedTemplate, parts: Sequence[PromptPart], prefix: str, thought: str = ""
    ) -> list[PromptPart]:
        """The parts of a prompt and the beginning of its answer, "" for none. thought: the reasoning before
        that, which itself goes on where there is no prefix; "" for none. Models that do not reason get none.
        """
        around = self._around_thought if thought else None
        if around is not None:
            opening, after = around
            parts = [*parts, PromptPart(_rest_of(opening, parts), True), PromptPart(thought, False)]
            if prefix or not self.thought_tag:
                parts.append(PromptPart(after, True))
        elif prefix and self._channels.begin:
            parts = [*parts, PromptPart(self._channels.begin, True)]
        elif prefix and (closing := closing_tag("".join(part.text for part in parts[-4:]))):
            blank = "\n" if parts[-1].text.endswith("\n") else ""  # the template has opened reasoning
            parts = [*parts, PromptPart(f"{blank}{closing}{2 * blank}", True)]
        return template.continued([part for part in parts if part.text], prefix)

    def apart(self, chat: protocol.ChatInput) -> protocol.ChatInput:
        """The chat with the reasoning in tags at the beginning of its answer as such."""
        if chat.prefix_thought or self._around_thought is None:
            return chat
        thought = thought_apart(chat.prefix)
        return chat if thought is None else replace(chat, prefix_thought=thought[0], prefix=thought[1])

    def reasoning_form(self, with_tools: bool, opened: str, goes_on: bool, end: str) -> ReasoningForm:
        """How the model writes reasoning. opened: the tag that closes the reasoning which the prompt has
        opened, "" for none in tags; goes_on: whether the prompt has the beginning of the reasoning; end: the
        last words of the prompt.
        """
        channels, around = self._channels, self._around_thought
        if channels.end_thought or channels.thinks:
            opening, last = channels.begin_thought or channels.thinks or ("", "")
            closing, after = channels.end_thought or (last, "")
            tags = ReasoningTags(opening, closing, closing + after if with_tools else last, last)
            is_open = goes_on or end.rstrip().endswith(opening.rstrip())
            return ReasoningForm([tags], True, tags if is_open else None)
        every = []
        for opening, closing in TAGS.items():
            last = around[1] if around is not None and closing in around[1] else f"\n{closing}\n\n"
            every.append(ReasoningTags(opening, closing, last, last))
        return ReasoningForm(every, False, next((tags for tags in every if tags.closing == opened), None))

    def budget(self, params: SamplingParams, variables: Mapping[str, Any]) -> int:
        """The tokens of reasoning that a request allows, -1 for any number: its own, or that of its effort
        where the template knows none. variables: of the template.
        """
        given, effort = params.reasoning_budget, variables.get("reasoning_effort")
        if given >= 0 or self._has_efforts or not isinstance(effort, str):
            return given
        return EFFORTS.get(effort, -1)

    def note_budget(self) -> str:
        """A line where a budget has no effect, "" where it has or that was said before."""
        if self.reasons or not self._is_new("reasoning_budget"):
            return ""
        return "a reasoning budget has no effect: the chat template of this model knows no reasoning"

    @property
    def thought_tag(self) -> str:
        """The tag that closes reasoning that goes on, "" where the model has none."""
        return self._reasoning[1] if self._reasoning is not None and not self._channels.reasons else ""

    @functools.cached_property
    def _around_thought(self) -> tuple[str, str] | None:
        """The texts before and after the reasoning of an answer, None for models that do not reason."""
        shown = self.abilities.thought
        if shown is not None:
            return shown
        if self._channels.begin_thought:
            return self._channels.begin_thought
        if self._channels.thinks is not None:
            return self._channels.thinks
        if self._reasoning is None:
            return None
        opening, closing = self._reasoning
        lines = opening.startswith("<") and not opening.startswith("<|")
        return (f"{opening}\n", f"\n{closing}\n\n") if lines else (opening, closing)

    @functools.cached_property
    def _special(self) -> dict[str, int]:
        """Ids of the control tokens of calls and reasoning, by their texts."""
        control, model = set(self._model.control_texts), self._model
        special = {}
        for text in {*self._texts, *TAGS, *TAGS.values()} & control:
            ids = model.tokenize(text, False, True)
            if len(ids) == 1:
                special[text] = ids[0]
        return special

    @functools.cached_property
    def _shown_tags(self) -> dict[int, str]:
        tags = {*TAGS, *TAGS.values()}
        return {id_: text for text, id_ in self._special.items() if text in tags}


def _rest_of(opening: str, parts: Sequence[PromptPart]) -> str:
    """The part of an opening tag that the prompt does not have at its end."""
    end = "".join(part.text for part in parts[-4:])[-4 * len(opening) - 16 :]
    if not opening.strip() or not end.rstrip().endswith(opening.strip()):
        return opening
    return "" if end.endswith(opening) or end != end.rstrip() else opening[len(opening.rstrip()) :]
