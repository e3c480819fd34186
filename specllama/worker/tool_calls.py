"""How a loaded model is shown tools and calls them: its format, its template, its control tokens."""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.calls.abilities import Abilities, abilities, rendered
from specllama.calls.format import AnswerShape, CallFormat, TemplateData
from specllama.calls.formats import choose, named
from specllama.calls.history import reasoning_apart
from specllama.calls.lark import Lark
from specllama.calls.prompt import with_tokens
from specllama.calls.schema import answer_text, notes
from specllama.calls.tools import NO_TOOLS, Tools
from specllama.core.sampling.params import SamplingParams
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.text.control_tokens import PromptPart
from specllama.text.detokenizer import SHOWN, Headers
from specllama.text.prompt_parts import PromptTemplate
from specllama.text.reasoning import TAGS, is_over

_KEPT = 512  # sets of schemas of which was said what is not enforced


class ToolCalls:
    """The tool calls of one loaded model. source: its chat template, "" without one; template: compiled, None
    where it cannot be used. tool_format: the name of a format, "auto" for that of the template. Raises
    UsageError for an unknown name.
    """

    def __init__(
        self, model: LlamaModel, source: str, template: PromptTemplate | None, tool_format: str = "auto"
    ) -> None:
        self._model, self._template = model, template
        own = choose(source)
        self.format: CallFormat = own if tool_format == "auto" else named(tool_format)
        self._channels = own if own.reasons else self.format
        self._without_tools = own.without_tools
        self._reasoning = next(((a, b) for a, b in TAGS.items() if a in source), None)
        self._noted: OrderedDict[int, None] = OrderedDict()  # hashes of schemas
        self._lock = threading.Lock()

    @property
    def reasons(self) -> bool:
        """Whether the template knows reasoning."""
        return self._reasoning is not None or self._channels.reasons

    @functools.cached_property
    def abilities(self) -> Abilities:
        """What the template shows."""
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
        template: PromptTemplate,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Tools | None,
    ) -> list[PromptPart]:
        """The prompt for these messages, with tools and earlier calls. Raises TemplateError, UsageError."""
        if self._channels.reasons:
            messages = reasoning_apart(messages)
        variables = {**self._without_tools, **variables}
        if tools is None and not any(m.get("tool_calls") or m.get("role") == "tool" for m in messages):
            return template.render(messages, **variables)

        def render(data: TemplateData) -> list[PromptPart]:
            return template.render(data.messages, **{**variables, **data.variables})

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
        """What the grammar of these tools does not enforce of their schemas, as one line; "" for nothing, and
        where it was said before. Raises UsageError as `grammar` does.
        """
        key = hash(json.dumps([(tool.name, tool.parameters) for tool in tools.allowed]))
        with self._lock:
            known = key in self._noted
            self._noted[key] = None
            self._noted.move_to_end(key)
            if len(self._noted) > _KEPT:
                self._noted.popitem(last=False)
        if known:
            return ""
        found = notes(tools)
        more = f"; nor are those of {len(found) - 1} more" if len(found) > 1 else ""
        return f"{found[0].message}{more}" if found else ""

    def _shape(self, params: SamplingParams, closing_tag: str, begun: bool = False) -> AnswerShape:
        text = ""
        if params.json_schema is not None:
            text = answer_text(params.json_schema)
        reasoning = self._reasoning
        if closing_tag:
            reasoning = next((a, b) for a, b in TAGS.items() if b == closing_tag)
        return AnswerShape(reasoning, bool(closing_tag), begun, text, self._special)

    def shown(self, tools: Tools | None) -> Mapping[int, str]:
        """Control tokens that are written into the output of a chat, by id: those that begin or end calls and
        reasoning.
        """
        if tools is None and not self._channels.reasons:
            return self._shown_tags
        texts = self._texts if tools is not None else self._channels.tokens
        marked = {id_: SHOWN + text for text, id_ in self._special.items() if text in texts}
        return {**self._shown_tags, **marked}

    @property
    def headers(self) -> Headers | None:
        """The headers in the output of a chat."""
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
        self, template: PromptTemplate, parts: Sequence[PromptPart], prefix: str
    ) -> list[PromptPart]:
        """The parts of a prompt and the beginning of its answer, "" for none."""
        if prefix and self._channels.begin:
            parts = [*parts, PromptPart(self._channels.begin, True)]
        return template.continued(parts, prefix)

    @functools.cached_property
    def _special(self) -> dict[str, int]:
        """Ids of the control tokens of calls and reasoning, by their texts."""
        control, model = set(self._model.control_texts), self._model
        found = {}
        for text in {*self._texts, *TAGS, *TAGS.values()} & control:
            ids = model.tokenize(text, False, True)
            if len(ids) == 1:
                found[text] = ids[0]
        return found

    @functools.cached_property
    def _shown_tags(self) -> dict[int, str]:
        tags = {*TAGS, *TAGS.values()}
        return {id_: text for text, id_ in self._special.items() if text in tags}
