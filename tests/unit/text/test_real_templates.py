"""Chat templates of real models, from llama.cpp: they render as with plain Jinja, a user's text stays
text, and splitting a prompt into parts does not change its ids.

scripts/fetch_templates.py, called by scripts/test, downloads them; without them all tests are skipped.
"""

from __future__ import annotations

import datetime
import functools
import html
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
from jinja2 import ext, meta, nodes, sandbox

from specllama.config.load import ModelSettings
from specllama.data import EMBEDDED_TARGET
from specllama.errors import TemplateError
from specllama.llama.model import LlamaModel
from specllama.text.chat_template import ChatTemplate
from specllama.text.prompt_parts import PromptPart, encode
from tests.support.paths import SHARED

FOLDER = Path(sys.prefix) / "share" / "llama.cpp-templates"
SOURCES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}
VOCABS = [EMBEDDED_TARGET, *sorted((SHARED / "vocabs").glob("*.gguf"))]
FAMILIES = {  # of models.toml, to a template of the family; llama.cpp has none of Gemma 3 and SmolLM2
    "Llama 3.1": "meta-llama-Llama-3.1-8B-Instruct",
    "Llama 3.2": "meta-llama-Llama-3.2-3B-Instruct",
    "Llama 3.3": "meta-llama-Llama-3.3-70B-Instruct",
    "Qwen2.5": "Qwen-Qwen2.5-7B-Instruct",
    "Qwen3": "Qwen-Qwen3-0.6B",
    "Gemma 2": "google-gemma-2-2b-it",
    "Mistral Small": "Mistral-Small-3.2-24B-Instruct-2506",
    "DeepSeek-R1-Distill-Qwen": "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
}
pytestmark = pytest.mark.skipif(not SOURCES, reason=f"no templates in {FOLDER}: scripts/fetch_templates.py")
every = pytest.mark.parametrize("name", sorted(SOURCES) or ["none"])

BOS, EOS = "<s>", "</s>"
CODE = "Is `a[0] < b` and <b>x</b> é🙂 [1, 2]\n\n  def f(x):\n\treturn {x!r}  "
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Hello, who are you?"}
ANSWER = {"role": "assistant", "content": "A model."}
MORE = {"role": "user", "content": CODE}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <of> a place & more",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "where"}},
            "required": ["city"],
        },
    },
}
CALL = {
    "type": "function",
    "id": "abcdefghi",
    "function": {"name": "weather", "arguments": {"city": "Paris"}},
}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "sunny"}
THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nA model.", "reasoning_content": "hm"}
CASES: dict[str, dict[str, Any]] = {
    "one": {"messages": [USER]},
    "two turns": {"messages": [USER, ANSWER, MORE]},
    "system": {"messages": [SYSTEM, USER, ANSWER, MORE]},
    "no generation prompt": {"messages": [USER, ANSWER, MORE], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tool call": {"messages": [USER, CALLING, RESULT], "tools": [TOOL]},
    "thinking": {"messages": [USER], "enable_thinking": True},
    "no thinking": {"messages": [USER], "enable_thinking": False},
    "thought": {"messages": [USER, THOUGHT, MORE]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": CODE}]}]},
}


class Generation(ext.Extension):
    """The generation tag as in transformers."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("inside"), [], [], body).set_lineno(line)

    def inside(self, caller: Any) -> Any:
        return caller()


def refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


@functools.cache
def plain_environment(name: str) -> jinja2.Environment:
    """An environment like that of transformers.

    As in llama.cpp, lists may grow, there is from_json, and generators are written as JSON.
    """

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, default=list, **more)

    loops = ["jinja2.ext.loopcontrols", Generation]
    kind = (
        sandbox.SandboxedEnvironment if "append(" in SOURCES[name] else sandbox.ImmutableSandboxedEnvironment
    )
    environment = kind(trim_blocks=True, lstrip_blocks=True, extensions=loops)
    environment.filters |= {"tojson": tojson, "from_json": json.loads}
    now = datetime.datetime.now
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: now().strftime(form)}
    return environment


@functools.cache
def plain_template(name: str) -> jinja2.Template:
    return plain_environment(name).from_string(SOURCES[name])


def reference(name: str, **values: Any) -> str | None:
    """The prompt rendered with plain Jinja, None if the template refuses the messages."""
    today = datetime.datetime.now()
    dates = {"date_string": today.strftime("%d %b %Y"), "datetime": today.strftime("%b %d %Y")}
    names = {"add_generation_prompt": True, "enable_thinking": True, "bos_token": BOS, "eos_token": EOS}
    values = {**names, **dates, **own(name), **values}
    try:
        return plain_template(name).render(values)
    except (jinja2.TemplateError, TypeError, AttributeError):
        return None


def own(name: str) -> dict[str, str]:
    """Variables that a template needs to render anything."""
    return {"functions": "[]", "datetime": "today"} if "firefunction" in name else {}


@functools.cache
def compiled(name: str) -> ChatTemplate:
    return ChatTemplate(SOURCES[name], control_texts(name), BOS, EOS)


@functools.cache
def control_texts(name: str) -> tuple[str, ...]:
    """Texts in a template that are probably control tokens of a vocabulary."""
    patterns = r"<\|[^<>|\s{}'\"]+\|>", r"<｜[^<>｜\n]+｜>", r"</?\w+_of_turn>", r"\[/?[A-Z_]{3,}\]"
    return BOS, EOS, *sorted({t for p in patterns for t in re.findall(p, SOURCES[name])})


def rendered(name: str, messages: list[dict[str, Any]], **variables: Any) -> list[PromptPart]:
    return compiled(name).render(messages, **own(name), **variables)


def text(parts: list[PromptPart]) -> str:
    return "".join(part.text for part in parts)


def test_the_templates_of_all_families_are_present() -> None:
    assert set(FAMILIES.values()) <= set(SOURCES)
    assert len(SOURCES) > 50


@every
@pytest.mark.parametrize("case", CASES)
def test_the_prompt_is_the_same_as_with_plain_jinja(name: str, case: str) -> None:
    expected = reference(name, **CASES[case])
    if expected is not None:
        assert text(rendered(name, **CASES[case])) == expected
        return
    assert case not in ("one", "two turns", "no generation prompt", "thinking", "no thinking")
    with pytest.raises(TemplateError, match="refuses these messages"):
        rendered(name, **CASES[case])


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_accept_system_messages_and_tools(family: str) -> None:
    name = FAMILIES[family]
    assert (reference(name, **CASES["system"]) is None) is (family == "Gemma 2")
    knows_tools = "weather" in text(rendered(name, **CASES["tools"]))
    assert knows_tools is (family not in ("Gemma 2", "DeepSeek-R1-Distill-Qwen"))


@every
def test_enable_thinking_changes_the_prompt(name: str) -> None:
    """A template that uses enable_thinking renders another prompt with it, others do not."""
    on, off = (text(rendered(name, [USER], enable_thinking=value)) for value in (True, False))
    if "enable_thinking" in meta.find_undeclared_variables(plain_environment(name).parse(SOURCES[name])):
        assert on != off
    else:
        assert on == off


def cases_with(content: str) -> Iterator[dict[str, Any]]:
    """Conversations that contain this text in different places."""
    user, tool = {"role": "user", "content": content}, json.loads(json.dumps(TOOL))
    tool["function"]["description"] = content
    yield {"messages": [user]}
    yield {"messages": [{"role": "system", "content": content}, USER]}
    yield {"messages": [user, ANSWER, {"role": "user", "content": f"a {content}{content} b"}]}
    yield {"messages": [USER], "tools": [tool]}
    yield {"messages": [USER, CALLING, {**RESULT, "content": content}], "tools": [TOOL]}


def parsed_controls(name: str, parts: list[PromptPart]) -> Counter[str]:
    """The control tokens that are parsed in the parts."""
    pattern = re.compile("|".join(map(re.escape, sorted(control_texts(name), key=len, reverse=True))))
    return Counter(t for part in parts if part.parse_special for t in pattern.findall(part.text))


@every
def test_control_texts_in_a_message_stay_text(name: str) -> None:
    for content in control_texts(name):
        for case, plain in zip(cases_with(content), cases_with("nothing"), strict=True):
            expected = reference(name, **case)
            if expected is None or reference(name, **plain) is None:
                continue
            parts = rendered(name, **case)
            assert text(parts) == expected.replace(html.escape(content), content)  # one escapes tools as HTML
            assert parsed_controls(name, parts) == parsed_controls(name, rendered(name, **plain)), (
                content,
                case,
            )


class Vocab:
    """A vocabulary, and every template compiled with its control tokens."""

    def __init__(self, path: Path) -> None:
        self.model = model = LlamaModel(ModelSettings(path=str(path)), vocab_only=True)
        self.bos, self.bos_id, self.adds_bos = model.token_text(model.bos_id), model.bos_id, model.adds_bos
        self.control = model.control_texts
        names = self.bos, model.token_text(model.eos_id)
        self.templates = {name: ChatTemplate(s, self.control, *names) for name, s in SOURCES.items()}

    def ids(self, name: str, messages: list[dict[str, Any]]) -> tuple[list[int], str]:
        """(the ids of the prompt, as in the engine process; its text)."""
        parts = self.templates[name].render(messages, **own(name))
        return encode(parts, self.model.tokenize, self.bos, self.adds_bos), text(parts)


@pytest.fixture(scope="module", params=VOCABS, ids=lambda path: path.stem)
def vocab(request: pytest.FixtureRequest) -> Iterator[Vocab]:
    vocabulary = Vocab(request.param)
    yield vocabulary
    vocabulary.model.close()


def test_ids_are_those_of_the_whole_text(vocab: Vocab) -> None:
    """Whether or not a message contains characters with which control texts start."""
    for name in SOURCES:
        for messages in ([USER], [MORE], [USER, ANSWER, MORE]):
            ids, whole = vocab.ids(name, messages)
            begins = bool(vocab.bos) and whole.startswith(vocab.bos)
            assert ids == vocab.model.tokenize(whole, vocab.adds_bos and not begins, True), name


def test_bos_is_added_once(vocab: Vocab) -> None:
    for name in SOURCES:
        ids, whole = vocab.ids(name, [USER])
        written = whole.startswith(vocab.bos)
        assert (ids[0] == vocab.bos_id) is (vocab.adds_bos or written), name
        assert ids[1] != vocab.bos_id or whole.startswith(2 * vocab.bos), name
        assert ids.count(vocab.bos_id) == whole.count(vocab.bos) + (vocab.adds_bos and not written), name


def test_a_user_cannot_write_control_tokens(vocab: Vocab) -> None:
    """The only ids of control tokens are those that the template writes, and the text is preserved."""
    texts = [t for t in vocab.control if "reserved" not in t and "placeholder" not in t]
    model = vocab.model
    special = {i for i in range(model.n_vocab) if model.token_text(i) in texts}
    for name in FAMILIES.values():
        plain, _ = vocab.ids(name, [USER, ANSWER, {"role": "user", "content": "xyz x y z"}])
        for content in texts:
            message = {"role": "user", "content": f"xyz{content} x {content} y {content}{content}z"}
            ids, _ = vocab.ids(name, [USER, ANSWER, message])
            assert [i for i in ids if i in special] == [i for i in plain if i in special], (name, content)
            assert message["content"].encode() in b"".join(map(model.piece, ids))
