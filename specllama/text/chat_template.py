"""Chat templates: render messages to a prompt, in a sandbox. To be used in the process of template_worker.py,
which has limits on time and memory.

A user's text stays text: parts of a message that could be parsed as control tokens are marked while the
template runs (control_tokens.py), and `PromptPart.parse_special` is False for them in the result.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.errors import SpecllamaError, TemplateError, UsageError
from specllama.text.control_tokens import ControlTexts, Marks, PromptPart
from specllama.text.prompt_parts import HINT, MAX_CHARS, Message, continued, nested_too_deeply
from specllama.text.sandbox import Sandbox

MAX_SOURCE = 256 * 1024  # characters of a template
# transformers gives tools=None where there are none; most templates ask whether tools are defined.
_NONE_FOR_TOOLS, _DEFINED_TOOLS = (
    re.compile(r"\btools is (not )?none\b"),
    re.compile(r"\btools is (not )?defined\b"),
)
_THINKING = re.compile(r"\benable_thinking\b")  # true unless a request says otherwise, as in llama-server


class ChatTemplate:
    """A compiled template. Raises TemplateError if it does not compile.

    control_texts: texts of the model's control tokens. bos, eos: texts of these tokens, "" for none. own:
    whether the template is the model's own; errors in one that the user gave are UsageError instead.
    """

    def __init__(
        self, source: str, control_texts: Sequence[str] = (), bos: str = "", eos: str = "", own: bool = True
    ) -> None:
        self._error: type[SpecllamaError] = TemplateError if own else UsageError
        self._names: dict[str, str | bool | None] = {"bos_token": bos, "eos_token": eos}
        if _THINKING.search(source):
            self._names["enable_thinking"] = True
        if _NONE_FOR_TOOLS.search(source) and not _DEFINED_TOOLS.search(source):
            self._names["tools"] = None
        if len(source) > MAX_SOURCE:
            raise self._error(f"the chat template has more than {MAX_SOURCE} characters", HINT)
        self._source, self._control = source, ControlTexts(control_texts)
        try:
            self._template = Sandbox().from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Python raises for a source
            raise self._error(f"the chat template does not compile: {_one_line(error)}", HINT) from None

    def render(self, messages: Sequence[Message], **variables: Any) -> list[PromptPart]:
        """The prompt for the next answer, in parts whose concatenated ids are the prompt's ids.

        variables: further variables of the template (tools, enable_thinking …). The text of a control token
        in messages or variables is never parsed as one, nor is one that the template assembles from pieces of
        them, unless the template itself examines the characters that control texts begin with. Raises
        TemplateError (UsageError for the user's template) if the template refuses the messages, or writes
        over 4 MB more than the messages have; UsageError for messages that are nested too deeply, or full of
        what looks like control tokens.
        """
        try:
            return self._parts(messages, variables)
        except RecursionError:
            raise nested_too_deeply() from None

    def continued(self, parts: Sequence[PromptPart], text: str) -> list[PromptPart]:
        """See PromptTemplate."""
        return continued(self._control, parts, text)

    def _parts(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> list[PromptPart]:
        marks = Marks(self._control, taken=self._source)
        text = self._rendered(marks, messages, variables)
        if marks.loose:
            thorough = Marks(self._control, thorough=True, taken=self._source)
            try:
                parts = thorough.parts(self._rendered(thorough, messages, variables))
            except SpecllamaError:
                parts = []  # the template examines marked characters
            if "".join(p.text for p in parts) == "".join(p.text for p in marks.parts(text)):
                return parts
        return marks.parts(text)

    def _rendered(self, marks: Marks, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        shown = marks.hide(messages)
        more = {name: marks.hide(value) for name, value in variables.items()}
        values = {"add_generation_prompt": True, **_dates(), **self._names, **more, "messages": shown}
        return self._written(values, len(str(shown)))

    def _written(self, values: Mapping[str, Any], n_given: int) -> str:
        out, size = [], -n_given
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_CHARS:
                    raise self._error("the chat template writes over 4 MB more than the messages have", HINT)
                out.append(piece)
        except (SpecllamaError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a template can raise whatever Python can
            message = f"the chat template refuses these messages: {_one_line(error)}"
            raise self._error(message, HINT, {"refused": True}) from None
        return "".join(out)


def _dates() -> dict[str, str]:
    """Today's date in the variables of Llama 3's templates and of FireFunction's, as in llama.cpp."""
    today = time.localtime()
    return {"date_string": time.strftime("%d %b %Y", today), "datetime": time.strftime("%b %d %Y", today)}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
