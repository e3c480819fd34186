"""Conversations on hybrid and windowed models, with the templates of real ones: what each turn evaluates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.calls.tools import Tools
from specllama.client import protocol as m
from specllama.config.load import ModelSettings
from specllama.core.prefix.stored import GAP
from tests.support import tinygguf, tinymtp
from tests.support.front import Front
from tests.support.templates import SOURCES
from tests.support.tool_calls import TOOLS

MODELS = {"qwen35": tinymtp.qwen35, "lfm2": tinygguf.lfm2, "gemma3": tinygguf.gemma3, "jamba": tinygguf.jamba}
TEMPLATES = ("Qwen3.5-4B", "LFM2-8B-A1B", "NVIDIA-Nemotron-Nano-v2", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
PARAMS = {"max_tokens": 24, "seed": 3, "temperature": 0.8, "ignore_eos": True}
SYSTEM = "You answer questions about a machine that sorts letters. " * 8
STRIPPING = """{%- set last = namespace(user=0) %}{%- for m in messages %}{%- if m.role == "user" %}
{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}{%- for m in messages %}
{{- "<|im_start|>" + m.role + "\n" }}{%- if m.role == "assistant" and loop.index0 > last.user %}
{{- "<think>\n" + (m.reasoning_content or "") + "\n</think>\n\n" }}{%- endif %}{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- "<tool_call>\n" + (call.function | tojson) + "\n</tool_call>" }}
{%- endfor %}{{- "<|im_end|>\n" }}{%- endfor %}
{%- if add_generation_prompt %}{{- "<|im_start|>assistant\n<think>\n" }}{%- endif %}"""
"""Strips the reasoning of answers before the last message of the user, as Qwen 3.5's template does."""

OWN = {"stripping": STRIPPING, "chatml": tinygguf.CHATML}
CASES = [
    *((kind, name) for kind in MODELS for name in OWN),
    *(
        pytest.param(kind, name, marks=pytest.mark.skipif(name not in SOURCES, reason="not fetched"))
        for kind in MODELS
        for name in TEMPLATES
    ),
]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: build(folder / f"{kind}.gguf", n_ctx_train=8192) for kind, build in MODELS.items()}


@pytest.fixture
def opened(paths: dict[str, Path], fronts: Callable[..., Front]) -> Callable[..., Front]:
    def make(kind: str, template: str | None = None, n_slots: int = 1, **more: Any) -> Front:
        target = ModelSettings(
            path=str(paths[kind]), n_threads=1, n_ctx=6144, n_ubatch=64, n_batch=256, **more.pop("target", {})
        )
        more = {"drafters": (), "memory": False, "calibrate": False} | more
        source = (OWN | SOURCES)[template] if template is not None else tinygguf.CHATML
        return fronts(target=target, n_slots=n_slots, chat_template=source, **more)

    return make


def ask(front: Front, messages: list[dict[str, Any]], **more: Any) -> tuple[m.Done, str]:
    text = front.text(messages=messages, params=PARAMS | more.pop("params", {}), **more)
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    return done, text


def new_ids(front: Front, before: list[dict[str, Any]], after: list[dict[str, Any]], **more: Any) -> int:
    """Ids of the second prompt that are not in the first one."""
    a, b = (front.prompt_ids(messages=one, **more) for one in (before, after))
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return len(b) - n


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(("kind", "template"), CASES)
@pytest.mark.parametrize("reasons", [False, True])
def test_every_turn_evaluates_what_is_new(opened, kind, template, reasons):
    """Reasoning of earlier answers is sent again, and stripped by the templates."""
    front = opened(kind, template)
    messages = [
        {"role": "system", "content": SYSTEM},
        user("What does it do with letters that have no stamp?"),
    ]
    before: list[dict[str, Any]] = []
    for turn in range(4):
        done, text = ask(front, messages)
        if turn:
            new = new_ids(front, before, messages)
            assert done.stats.n_evaluated <= new + GAP
            assert done.stats.n_reused > 200
        before = list(messages)
        answer = {"role": "assistant", "content": f"It does {turn} things."}
        if reasons:
            answer["reasoning_content"] = text
        messages = [*messages, answer, user(f"And number {turn}, what about that?")]


@pytest.mark.parametrize(("kind", "template"), CASES)
def test_calls_and_results_are_rendered_again(opened, kind, template):
    front, tools = opened(kind, template), Tools(TOOLS)
    messages = [{"role": "system", "content": SYSTEM}, user("Look it up in all of the files.")]
    before: list[dict[str, Any]] = []
    for turn in range(4):
        done, _ = ask(front, messages, tools=tools, params={"ignore_eos": False})
        if turn:
            assert done.stats.n_evaluated <= new_ids(front, before, messages, tools=tools) + GAP
            assert done.stats.n_reused > 200
        before = list(messages)
        call = {"name": TOOLS[0].name, "arguments": {"q": str(turn)}}
        messages = [
            *messages,
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": "I look.",
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"RESULT {turn} " * 10},
        ]


@pytest.mark.parametrize(("kind", "template"), CASES)
def test_an_edit_and_a_second_agent_evaluate_their_own_part(opened, kind, template):
    front = opened(kind, template)
    system = {"role": "system", "content": SYSTEM * 2}
    messages = [system]
    for turn in range(4):
        messages = [*messages, user(f"Question {turn}: " + "what then? " * 12)]
        if turn < 3:
            messages = [*messages, {"role": "assistant", "content": f"Answer {turn}. " * 6}]
    ask(front, messages)
    edited = [*messages[:-1], user("Something else: " + "who knows? " * 12)]
    done, text = ask(front, edited)
    assert done.stats.n_evaluated <= new_ids(front, messages, edited) + GAP
    second = [system, user("I am another agent. " * 5)]
    done, _ = ask(front, second)
    assert done.stats.n_evaluated <= new_ids(front, messages, second) + GAP
    again, same = ask(front, edited)
    assert again.stats.n_evaluated <= 2 * GAP
    assert same == text


@pytest.mark.parametrize("kind", MODELS)
def test_side_requests_leave_a_conversation_warm(opened, kind):
    """Issue 43, item 5, with one slot and with four."""
    for n_slots in (1, 4):
        front = opened(kind, n_slots=n_slots)
        messages = [{"role": "system", "content": SYSTEM * 3}, user("What is it?")]
        _, text = ask(front, messages)
        n_prompt = len(front.prompt_ids(messages=messages))
        for i in range(6):
            ask(front, [user(f"Title number {i} for: " + "a b c " * 30)])
        longer = [*messages, {"role": "assistant", "content": text}, user("And then?")]
        done, _ = ask(front, longer)
        assert done.stats.n_reused >= n_prompt - GAP
        front.close()
