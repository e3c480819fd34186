"""Call formats with the chat templates of real models, from llama.cpp: which format each gets, and that what
it writes of earlier calls is what the grammar has and the reader reads.

scripts/fetch_templates.py, called by scripts/test, downloads the templates; SPECLLAMA_TEMPLATES names
another folder. Without them all tests are skipped.
"""

from __future__ import annotations

from typing import Any

import pytest

from specllama.calls.formats import choose
from tests.support.templates import FOLDER, SOURCES, CallTemplate
from tests.support.tool_calls import Call

pytestmark = pytest.mark.skipif(not SOURCES, reason=f"no templates in {FOLDER}: scripts/fetch_templates.py")
FORMATS = {  # all others are generic
    "apertus": "Apertus-8B-Instruct",
    "apriel": "Apriel-1.6-15b-Thinker-fixed unsloth-Apriel-1.5",
    "command-r": "Cohere2MoE CohereForAI-c4ai-command-r7b-12-2024-tool_use",
    "deepseek-r1": "llama-cpp-deepseek-r1",
    "deepseek-v3.2": "deepseek-ai-DeepSeek-V3.2",
    "deepseek-v4": "deepseek-ai-DeepSeek-V4 deepseek-ai-DeepSeek-V4-Flash-0731",
    "firefunction": "fireworks-ai-llama-3-firefunction-v2",
    "functionary-v3.1": "meetkai-functionary-medium-v3.1",
    "gemma4": "google-gemma-4-31B-it google-gemma-4-31B-it-interleaved",
    "gigachat": "GigaChat3.1-10B-A1.8B",
    "hy3": "tencent-Hy3",
    "glm": "GLM-4.6 GLM-4.7-Flash Spark2.5 inclusionai-ling-3.0-flash poolside-Laguna-S-2.1 "
    "poolside-Laguna-XS-2.1 poolside-Laguna-XS.2",
    "gpt-oss": "openai-gpt-oss-120b",
    "granite": "ibm-granite-granite-3.3-2B-Instruct",
    "hermes": "Bielik-11B-v3.0-Instruct MiMo-VL NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use "
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use Qwen-QwQ-32B Qwen-Qwen2.5-7B-Instruct Qwen-Qwen3-0.6B "
    "Reka-Edge ibm-granite-granite-4.0 ibm-granite-granite-4.1",
    "kimi-k2": "Kimi-K2-Instruct Kimi-K2-Thinking moonshotai-Kimi-K2",
    "lfm2": "LFM2-8B-A1B LFM2.5-8B-A1B LFM2.5-Instruct",
    "llama3": "meta-llama-Llama-3.1-8B-Instruct meta-llama-Llama-3.2-3B-Instruct "
    "meta-llama-Llama-3.3-70B-Instruct",
    "minimax-m1": "MiniMax-M1",
    "minimax-m2": "MiniMax-M2",
    "mistral": "mistralai-Ministral-3-14B-Reasoning-2512 unsloth-mistral-Devstral-Small-2507",
    "mistral-ids": "Mistral-Small-3.2-24B-Instruct-2506",
    "mistral-list": "mistralai-Mistral-Nemo-Instruct-2407",
    "nemotron": "NVIDIA-Nemotron-Nano-v2",
    "qwen-xml": "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 Qwen3-Coder Qwen3.5-4B StepFun3.5-Flash",
    "seed": "ByteDance-Seed-OSS",
    "solar": "upstage-Solar-Open-100B",
}
EXPECTED = {name: form for form, names in FORMATS.items() for name in names.split()}
CALLS: list[Call] = [
    (
        "weather",
        {"city": "Paris <b>", "days": 3, "units": "C", "when": ["a", "b"], "near": {"exact": True}},
    ),
    ("now", {}),
]
PYTHON = ("weather", {"city": "Paris", "days": 3})  # LFM2.5's template writes Python without escapes


@pytest.mark.parametrize("name", sorted(SOURCES) or ["none"])
def test_calls_of_a_real_template(name: str) -> None:
    form = choose(SOURCES[name])
    assert form.name == EXPECTED.get(name, "generic")
    more: dict[str, Any] = {"functions": "[]", "datetime": "today"} if "firefunction" in name else {}
    made = CallTemplate(form, SOURCES[name], more)
    assert "weather" in made.conversation([{"role": "user", "content": "QUESTION"}])
    first = PYTHON if name == "LFM2.5-8B-A1B" else CALLS[0]
    for calls in ([first], [CALLS[1]], [first, CALLS[1]]):
        made.check(calls)


def test_all_expected_templates_are_there() -> None:
    assert set(EXPECTED) <= set(SOURCES)
