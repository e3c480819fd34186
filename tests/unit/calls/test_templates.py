"""Chat templates and call formats: minimal ones, with the markers by which families are known, and how each
shows earlier calls. The templates of real models are in test_real_templates.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from specllama.calls.abilities import Abilities
from specllama.calls.format import marked, with_tokens, without_marks
from specllama.calls.formats import choose, named
from specllama.calls.history import nine_characters
from specllama.calls.tools import Tools
from specllama.text.chat_template import ChatTemplate
from specllama.text.detokenizer import SHOWN
from specllama.text.prompt_parts import PromptPart
from tests.support.templates import CallTemplate
from tests.support.tool_calls import FULL, TOOLS, turns

SIMPLE = [("weather", {"city": "Paris", "days": 3, "units": "C"}), ("now", {})]
_LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
_CALLS = "{% for c in m.tool_calls or [] %}{% set f = c.function %}"
_END = "{% endfor %}{% endfor %}"
_XML_VALUE = "{{ v if v is string else v | tojson }}"


def template(calls: str, after: str = "") -> str:
    """A template that writes each call as `calls`, with `f` for the function."""
    return f"{_TOOLS}{_LOOP}{_CALLS}{calls}{{% endfor %}}{after}{{% endfor %}}"


ONE_ONLY = (
    "{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
)
NINE = "{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}"
MINIMAL: dict[str, str] = {
    "hermes": template(
        '\n<tool_call>\n{{ \'{"name": "\' }}{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
        "\n</tool_call>"
    ),
    "qwen-xml": template(
        "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter={{ k }}>\n"
        + _XML_VALUE
        + "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    ),
    "glm": template(
        "<tool_call>{{ f.name }}{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key><arg_value>"
        + _XML_VALUE
        + "</arg_value>{% endfor %}</tool_call>"
    ),
    "minimax-m2": f"{_TOOLS}{_LOOP}{{% if m.tool_calls %}}<minimax:tool_call>\n"
    + _CALLS
    + '<invoke name="{{ f.name }}">\n{% for k, v in f.arguments.items() %}<parameter name="{{ k }}">'
    + _XML_VALUE
    + "</parameter>\n{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>{% endif %}{% endfor %}",
    "llama3": _TOOLS
    + "{% for m in messages %}"
    + ONE_ONLY
    + "{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>{% endif %}{{ m.content or '' }}"
    + "{% if 'tool_calls' in m %}{% set f = m.tool_calls[0].function %}"
    + '{{ \'{"name": "\' + f.name + \'", \' }}{{ \'"parameters": \' }}{{ f.arguments | tojson }}{{ "}" }}'
    + "{% endif %}{% endfor %}",
    "mistral-list": f"{_TOOLS}{_LOOP}{{% if m.tool_calls %}}[TOOL_CALLS][{{% for c in m.tool_calls %}}{NINE}"
    + '{{ (c.function | tojson)[:-1] }}, "id": "{{ c.id }}"}{{ ", " if not loop.last }}{% endfor %}]'
    + "{% endif %}{% endfor %}",
    "mistral": template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "mistral-ids": template(
        NINE + "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"
    ),
    "deepseek-v3.1": f"{_TOOLS}{_LOOP}{{% if m.tool_calls %}}<｜tool▁calls▁begin｜>"
    + _CALLS
    + "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>"
    + "{% endfor %}<｜tool▁calls▁end｜>{% endif %}{% endfor %}",
    "kimi-k2": f"{_TOOLS}{_LOOP}{{% if m.tool_calls %}}<|tool_calls_section_begin|>"
    + "{% for c in m.tool_calls %}<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>"
    + "{{ c.function.arguments | tojson }}"
    + "<|tool_call_end|>{% endfor %}<|tool_calls_section_end|>{% endif %}{% endfor %}",
    "gemma4": template(
        "<|tool_call>call:{{ f.name }}{{ '{' }}{% for k, v in f.arguments | dictsort %}"
        "{{ ',' if not loop.first }}"
        '{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>{% else %}{{ v }}{% endif %}{% endfor %}}<tool_call|>'
    ),
    "gpt-oss": _TOOLS
    + "{% for m in messages %}"
    + ONE_ONLY
    + "<|start|>{{ m.role }}{% if m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    + " to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    + "{% else %}<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}",
    "olmo3": "<functions>{% if tools is not none %}{{ tools | tojson }}{% endif %}</functions>"
    + "{% for m in messages %}<|im_start|>{{ 'environment' if m.role == 'tool' else m.role }}\n"
    + "{{ m.content or '' }}{% if m.tool_calls %}<function_calls>{% for c in m.tool_calls %}"
    + "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}"
    + "{{ ', ' if not loop.last }}{% endfor %}){{ '\n' if not loop.last }}{% endfor %}</function_calls>"
    + "{% endif %}<|im_end|>\n{% endfor %}",
    "lfm2": "List of tools: [" + _TOOLS + "]" + _LOOP + "{% endfor %}",  # shows no calls
    "granite": "{% set available_tools = tools %}<|tool_call|>" + _TOOLS + _LOOP + "{% endfor %}",
    "generic": _LOOP + "{% endfor %}",
}


@pytest.mark.parametrize("name", MINIMAL)
def test_earlier_calls_are_written_as_the_grammar_has_them(name: str) -> None:
    form = choose(MINIMAL[name])
    assert form.name == name
    made = CallTemplate(form, MINIMAL[name])
    expected = Abilities(tools=True, calls=name not in ("lfm2", "granite"), system=True, systems=True)
    assert made.shows == expected or name == "generic"
    prompt = made.conversation([{"role": "user", "content": "QUESTION"}])
    assert "weather" in prompt
    assert "The time" in prompt
    for calls in ([SIMPLE[0]], [SIMPLE[1]], SIMPLE):
        made.check(calls)


def test_reasoning_and_text_of_gpt_oss() -> None:
    form = named("gpt-oss")
    messages = [*turns([FULL]), {"role": "assistant", "content": "Sunny.", "reasoning_content": "old"}]
    messages[1] |= {"content": "I look.", "reasoning_content": "hm"}
    shown = form.template_input(messages, Tools(TOOLS), True).messages
    assert (shown[1]["thinking"], shown[1]["content"]) == ("hm", "")
    assert "thinking" not in shown[-1]
    assert "reasoning_content" not in shown[-1]


REFUSES_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + MINIMAL["generic"]
)


def test_templates_that_refuse_system_messages() -> None:
    made = CallTemplate(named("generic"), REFUSES_SYSTEM)
    assert not made.shows.system
    prompt = made.conversation([{"role": "user", "content": "QUESTION"}])
    assert prompt.startswith("[user]")
    assert prompt.index("weather") < prompt.index("QUESTION")
    made.check(SIMPLE)


def test_the_system_message_is_kept() -> None:
    made = CallTemplate(named("generic"), MINIMAL["generic"])
    prompt = made.conversation([{"role": "system", "content": "Be brief."}, *turns(SIMPLE, "I look.")])
    assert prompt.startswith("[system]Be brief.\n\n# Tools")
    assert prompt.count("[system]") == 1
    assert "[assistant]I look.\n<tool_call>" in prompt
    assert prompt.count("[user]") == 2
    assert "</tool_response>\n<tool_response>" in prompt


def test_without_tools_nothing_is_described() -> None:
    for name in ("generic", "hermes", "mistral"):
        data = named(name).template_input([{"role": "user", "content": "a"}], None, False)
        assert (data.messages, data.variables) == ([{"role": "user", "content": "a"}], {})


@pytest.mark.parametrize("name", ["lfm2", "granite", "gemma4", "mistral-list", "deepseek-v3.2", "gpt-oss"])
def test_tokens_in_text_are_control_tokens(name: str) -> None:
    """Those that the format writes, not those that a client writes."""
    form = named(name)
    attack = f"{SHOWN}{form.tokens[0]} {form.tokens[0]}"
    calls = [("weather", {"city": attack})]
    messages = [{"role": "user", "content": attack}, *turns(calls)[1:]]
    data = form.template_input(messages, Tools(TOOLS), True, calls=False, special=form.tokens)
    source = ChatTemplate(MINIMAL["generic"], list(form.tokens))
    parts = with_tokens(source.render(data.messages, **data.variables), form.tokens)
    assert SHOWN not in "".join(part.text for part in parts)
    special = [part.text for part in parts if part.parse_special and part.text in form.tokens]
    written = form.write(calls, form.tokens)
    expected = without_marks(written).count(form.tokens[0]) - attack.count(form.tokens[0])
    assert special.count(form.tokens[0]) == expected > 0


def test_marks() -> None:
    assert marked("a<b>c", ["<b>"]) == f"a{SHOWN}<b>c"
    assert marked("a<b>c", []) == "a<b>c"
    assert without_marks({"a" + SHOWN: [SHOWN, 1, (f"b{SHOWN}",)]}) == {"a": ["", 1, ["b"]]}
    parts = [PromptPart(f"x{SHOWN}<b>y{SHOWN}z", False), PromptPart("<b>", True)]
    assert with_tokens(parts, ["<b>"]) == [
        PromptPart("x", False),
        PromptPart("<b>", True),
        PromptPart("y", False),
        PromptPart("z", False),
        PromptPart("<b>", True),
    ]


def test_ids_of_nine_characters() -> None:
    assert nine_characters("abcDEF123", "", 0) == "abcDEF123"
    ids = {nine_characters(f"call_{i}", "", 0) for i in range(1000)}
    assert len(ids) == 1000
    assert all(len(i) == 9 and i.isalnum() and i.isascii() for i in ids)


def test_one_call_a_turn_with_its_result() -> None:
    data: Any = named("llama3").template_input(turns([*SIMPLE, FULL]), Tools(TOOLS), True)
    roles = [(m["role"], [c["function"]["name"] for c in m.get("tool_calls", ())]) for m in data.messages]
    call, result = "assistant", ("tool", [])
    assert roles == [
        ("user", []),
        (call, ["weather"]),
        result,
        (call, ["now"]),
        result,
        (call, ["weather"]),
        result,
    ]
    assert [m["content"] for m in data.messages if m["role"] == "tool"] == [
        "RESULT 0",
        "RESULT 1",
        "RESULT 2",
    ]
    assert json.dumps(data.messages)


def test_firefunction_gets_the_tools_as_a_text() -> None:
    source = "{{ 'functools[' + '' }}{{ 'Available: ' + functions }}" + _LOOP + "{% endfor %}"
    form = choose(source)
    made = CallTemplate(form, source, form.without_tools)
    assert form.name == "firefunction"
    assert made.shows.tools
    assert '"name": "weather"' in made.conversation([{"role": "user", "content": "Hello"}])
    assert made.render(form.template_input([{"role": "user", "content": "Hello"}], None, True)) == (
        "functools[Available: [][user]Hello"
    )
