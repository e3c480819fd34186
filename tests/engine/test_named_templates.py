"""Each template that has a name in llama.cpp writes the text that llama.cpp writes for this name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import llama_cpp  # noqa: TID251 - it is the reference
import pytest

from specllama.config.forms import named_template, named_templates
from specllama.text.chat_template import ChatTemplate

SYSTEM = {"role": "system", "content": " Be brief.\n"}
QUESTION = {"role": "user", "content": "  What is\n<1>? "}
ANSWER = {"role": "assistant", "content": " One.\n\n"}
MORE = {"role": "user", "content": "And {{ 'two' }}?"}
CONVERSATIONS = (
    [QUESTION],
    [SYSTEM, QUESTION],
    [QUESTION, ANSWER],
    [SYSTEM, QUESTION, ANSWER, MORE],
    [QUESTION, ANSWER, MORE, ANSWER, QUESTION],
)


def of_llama_cpp(name: str, messages: Sequence[Mapping[str, str]], answer: bool) -> str:
    chat = (llama_cpp.llama_chat_message * len(messages))(
        *(llama_cpp.llama_chat_message(m["role"].encode(), m["content"].encode()) for m in messages)
    )
    text = ctypes.create_string_buffer(8192)
    n = llama_cpp.llama_chat_apply_template(name.encode(), chat, len(messages), answer, text, len(text))
    assert 0 <= n < len(text)
    return text.raw[:n].decode()


@pytest.mark.parametrize("name", named_templates())
def test_the_text_is_that_of_llama_cpp(name: str) -> None:
    template = ChatTemplate(named_template(name))
    for messages in CONVERSATIONS:
        for answer in (False, True):
            written = template.render(messages, add_generation_prompt=answer)
            expected = of_llama_cpp(name, messages, answer)
            assert "".join(part.text for part in written) == expected, messages
