"""llama.cpp's names for chat templates, which its users give in place of a template.

llama.cpp writes these conversations in C++ (src/llama-chat.cpp); here each is a Jinja template of the same
text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from specllama.errors import UsageError, option

_NAME = re.compile(r"[a-z][a-z0-9._-]{0,31}")
_PART = re.compile(r"(\{role\}|\{content\}|\{trimmed\})")
_VALUES = {
    "{role}": "message['role']",
    "{content}": "message['content']",
    "{trimmed}": "message['content'] | trim",
}
ANY = ""
"""The role that stands for all others."""


@dataclass(frozen=True, slots=True)
class _Turns:
    """A template that writes one message after the other.

    turns: how a message of each role is written, with {role}, {content} and {trimmed} (the content without
    white space around it); a text is that of all roles. Messages of a role that is not there are left out.
    answer: what begins the next answer. start: what the prompt begins with.
    """

    turns: str | Mapping[str, str]
    answer: str = ""
    start: str = ""

    def jinja(self) -> str:
        turns = {ANY: self.turns} if isinstance(self.turns, str) else self.turns
        answer = (
            f"{{% if add_generation_prompt %}}{_written(self.answer)}{{% endif %}}" if self.answer else ""
        )
        body = f"{{% for message in messages %}}{_by_role(turns)}{{% endfor %}}"
        return f"{_written(self.start)}{body}{answer}"


def _by_role(turns: Mapping[str, str]) -> str:
    cases = [(role, _written(turn)) for role, turn in turns.items() if role != ANY]
    other = _written(turns[ANY]) if ANY in turns else ""
    if not cases:
        return other
    tests = [f"if message['role'] == {role!r} %}}{turn}" for role, turn in cases]
    return "{% " + "{% el".join(tests) + (f"{{% else %}}{other}" if other else "") + "{% endif %}"


def _written(text: str) -> str:
    """The Jinja expression of a text with {role}, {content} and {trimmed}."""
    parts = [_VALUES.get(part, repr(part)) for part in _PART.split(text) if part]
    return f"{{{{ {' ~ '.join(f'({part})' for part in parts)} }}}}" if parts else ""


def _instructions(first: str, user: str, assistant: str, system: str, again: str | None = None) -> str:
    """A template whose turn is everything up to an answer. first, again: what the first turn and later ones
    begin with; user: the end of the user's message; system, assistant: how such messages are written.
    """
    begins = f"{{% if ns.first %}}{_written(first)}{{% else %}}{_written(again or first)}{{% endif %}}"
    turns = {
        "system": system,
        "user": user,
        ANY: assistant,
    }
    ends = "{% set ns.inside = message['role'] == 'system' or message['role'] == 'user' %}"
    return (
        "{% set ns = namespace(inside=false, first=true) %}{% for message in messages %}"
        f"{{% if not ns.inside %}}{begins}{{% set ns.first = false %}}{{% endif %}}"
        f"{_by_role(turns)}{ends}{{% endfor %}}"
    )


def _gemma() -> str:
    """A system message becomes the beginning of the user's."""
    turn = _written("{trimmed}<end_of_turn>\n")
    return (
        "{% set ns = namespace(system='') %}{% for message in messages %}{% if message['role'] == 'system' %}"
        "{% set ns.system = ns.system ~ (message['content'] | trim) %}{% else %}"
        "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
        "{{ '<start_of_turn>' ~ role ~ '\\n' }}"
        "{% if ns.system and role != 'model' %}{{ ns.system ~ '\\n\\n' }}"
        f"{{% set ns.system = '' %}}{{% endif %}}{turn}{{% endif %}}{{% endfor %}}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
    )


def _llama2(system: str, content: str = "{content}", again: str = "[INST] ") -> str:
    return _instructions("[INST] ", f"{content} [/INST]", f"{content}</s>", system, again)


_SYSTEM = "<<SYS>>\n{content}\n<</SYS>>\n\n"
_GRANITE = _Turns(
    "<|start_of_role|>{role}<|end_of_role|>{content}<|end_of_text|>\n",
    "<|start_of_role|>assistant<|end_of_role|>",
)
_COMMAND_R = "<|START_OF_TURN_TOKEN|><|{}_TOKEN|>{{trimmed}}<|END_OF_TURN_TOKEN|>"
_EXAONE = {
    "system": "[|system|]{trimmed}[|endofturn|]\n",
    "user": "[|user|]{trimmed}\n",
    "assistant": "[|assistant|]{trimmed}[|endofturn|]\n",
}
_EXAONE_MOE = {
    role: f"<|{role}|>\n{{trimmed}}<|endofturn|>\n" for role in ("system", "user", "assistant", "tool")
}
_END = "<｜end▁of▁sentence｜>"
_USER, _ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
_VICUNA = {"user": "USER: {content}\n", "assistant": "ASSISTANT: {content}</s>\n"}
_NAMED: Mapping[str, _Turns | Callable[[], str]] = {
    "chatml": _Turns("<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n"),
    "llama2": lambda: _llama2("{content}\n"),
    "llama2-sys": lambda: _llama2(_SYSTEM),
    "llama2-sys-bos": lambda: _llama2(_SYSTEM, again="<s>[INST] "),
    "llama2-sys-strip": lambda: _llama2(_SYSTEM.replace("content", "trimmed"), "{trimmed}"),
    "llama3": _Turns(
        "<|start_header_id|>{role}<|end_header_id|>\n\n{trimmed}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": _Turns(
        "<|header_start|>{role}<|header_end|>\n\n{trimmed}<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
    ),
    "mistral-v1": lambda: _instructions(" [INST] ", "{content} [/INST]", " {content}</s>", "{content}\n\n"),
    "mistral-v3": lambda: _instructions("[INST] ", "{content}[/INST]", " {trimmed}</s>", "{content}\n\n"),
    "mistral-v3-tekken": lambda: _instructions(
        "[INST]", "{content}[/INST]", "{content}</s>", "{content}\n\n"
    ),
    "mistral-v7": _Turns(
        {
            "system": "[SYSTEM_PROMPT] {content}[/SYSTEM_PROMPT]",
            "user": "[INST] {content}[/INST]",
            ANY: " {content}</s>",
        }
    ),
    "mistral-v7-tekken": _Turns(
        {
            "system": "[SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]",
            "user": "[INST]{content}[/INST]",
            ANY: "{content}</s>",
        }
    ),
    "phi3": _Turns("<|{role}|>\n{content}<|end|>\n", "<|assistant|>\n"),
    "phi4": _Turns("<|im_start|>{role}<|im_sep|>{content}<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "falcon3": _Turns("<|{role}|>\n{content}\n", "<|assistant|>\n"),
    "zephyr": _Turns("<|{role}|>\n{content}<|endoftext|>\n", "<|assistant|>\n"),
    "gemma": _gemma,
    "openchat": _Turns(
        {
            "system": "{content}<|end_of_turn|>",
            "user": "GPT4 Correct User: {content}<|end_of_turn|>",
            "assistant": "GPT4 Correct Assistant: {content}<|end_of_turn|>",
        },
        "GPT4 Correct Assistant:",
    ),
    "vicuna": _Turns({"system": "{content}\n\n", **_VICUNA}, "ASSISTANT:"),
    "vicuna-orca": _Turns({"system": "SYSTEM: {content}\n", **_VICUNA}, "ASSISTANT:"),
    "deepseek": _Turns(
        {
            "system": "{content}",
            "user": "### Instruction:\n{content}\n",
            "assistant": "### Response:\n{content}\n<|EOT|>\n",
        },
        "### Response:\n",
    ),
    "deepseek2": _Turns(
        {
            "system": "{content}\n\n",
            "user": "User: {content}\n\n",
            "assistant": f"Assistant: {{content}}{_END}",
        },
        "Assistant:",
    ),
    "deepseek3": _Turns(
        {
            "system": "{content}\n\n",
            "user": f"{_USER}{{content}}",
            "assistant": f"{_ASSISTANT}{{content}}{_END}",
        },
        _ASSISTANT,
    ),
    "command-r": _Turns(
        {
            "system": _COMMAND_R.format("SYSTEM"),
            "user": _COMMAND_R.format("USER"),
            "assistant": _COMMAND_R.format("CHATBOT"),
        },
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "chatglm3": _Turns("<|{role}|>\n {content}", "<|assistant|>", "[gMASK]sop"),
    "chatglm4": _Turns("<|{role}|>\n{content}", "<|assistant|>\n", "[gMASK]<sop>"),
    "glmedge": _Turns("<|{role}|>\n{content}", "<|assistant|>"),
    "exaone3": _Turns(_EXAONE, "[|assistant|]"),
    "exaone4": _Turns({**_EXAONE, "tool": "[|tool|]{trimmed}[|endofturn|]\n"}, "[|assistant|]"),
    "exaone-moe": _Turns(_EXAONE_MOE, "<|assistant|>\n"),
    "granite": _GRANITE,
    "granite-4.0": _GRANITE,
    "granite-4.1": _GRANITE,
    "megrez": _Turns(
        "<|role_start|>{role}<|role_end|>{content}<|turn_end|>", "<|role_start|>assistant<|role_end|>"
    ),
    "smolvlm": _Turns(
        {
            "system": "{content}\n\n",
            "user": "User: {content}<end_of_utterance>\n",
            ANY: "Assistant: {content}<end_of_utterance>\n",
        },
        "Assistant:",
        "<|im_start|>",
    ),
    "gpt-oss": _Turns(
        {
            "assistant": "<|start|>{role}<|message|>{content}<|return|>",
            ANY: "<|start|>{role}<|message|>{content}<|end|>",
        },
        "<|start|>assistant",
    ),
    "kimi-k2": _Turns(
        {
            "system": "<|im_system|>system<|im_middle|>{content}<|im_end|>",
            "user": "<|im_user|>user<|im_middle|>{content}<|im_end|>",
            "assistant": "<|im_assistant|>assistant<|im_middle|>{content}<|im_end|>",
            "tool": "<|im_system|>tool<|im_middle|>{content}<|im_end|>",
        },
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "seed_oss": _Turns(
        {
            "assistant": "<seed:bos>{role}\n{trimmed}<seed:eos>",
            ANY: "<seed:bos>{role}\n{content}<seed:eos>",
        },
        "<seed:bos>assistant\n",
    ),
    "grok-2": _Turns(
        {
            "system": "System: {trimmed}<|separator|>\n\n",
            "user": "Human: {trimmed}<|separator|>\n\n",
            "assistant": "Assistant: {content}<|separator|>\n\n",
        },
        "Assistant:",
    ),
    "solar-open": _Turns("<|begin|>{role}<|content|>{content}<|end|>", "<|begin|>assistant"),
}
NAMES = tuple(_NAMED)


def named_template(given: str) -> str:
    """The template that is meant: the given one, or the one of this name. Raises UsageError for other names.

    No template is a single word: it would show no messages.
    """
    template = _NAMED.get(given)
    if template is not None:
        return template.jinja() if isinstance(template, _Turns) else template()
    if _NAME.fullmatch(given):
        raise UsageError(
            f"{option('chat_template')}: {given!r} is no template, and no name of one: {', '.join(NAMES)}",
            f"give the template itself, in a file with {option('chat_template_file')}, or none at all",
        )
    return given
