"""The API's types, as a type checker of its users sees them: right uses pass, wrong ones do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("mypy")
USES = """
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import assert_type

from specllama import LLM, AsyncLLM, CompletionOutput, Delta, RequestOutput, SamplingParams, TextPrompt


def sync() -> None:
    with LLM(Path("main.gguf"), "draft.gguf", "auto", max_num_seqs=2, cache_type_k="q8_0") as llm:
        assert_type(llm, LLM)
        params = SamplingParams(temperature=0.7, stop=("a",))
        outputs = llm.generate(["a", "b"], params, n=2)
        assert_type(outputs, list[RequestOutput])
        assert_type(outputs[0].outputs[0], CompletionOutput)
        assert_type(outputs[0].outputs[0].text, str)
        assert_type(outputs[0].stats.speedup, float | None)
        llm.generate("a")
        llm.generate([[1, 2], [3]])
        llm.generate([TextPrompt(prompt="a"), TextPrompt(prompt="b")])
        llm.generate([1, 2, 3], {"seed": 1})
        llm.generate({"prompt": "a"}, [params])
        messages = [{"role": "user", "content": "a"}]
        assert_type(llm.chat(messages, params), list[RequestOutput])
        llm.chat([messages, messages], chat_template_kwargs={"enable_thinking": False})
        assert_type(llm.stream(messages), Generator[Delta, None, None])
        for part in llm.stream("a", {"max_tokens": 5}):
            print(part.text, part.output.outputs[0].token_ids[0] + 1)


async def asynchronous() -> None:
    async with AsyncLLM(speculative_config={"model": "a", "num_speculative_tokens": 5}) as llm:
        assert_type(llm, AsyncLLM)
        assert_type(llm.generate("a", None, "id"), AsyncGenerator[RequestOutput, None])
        async for output in llm.chat([{"role": "user", "content": "a"}]):
            assert_type(output, RequestOutput)
        assert_type(await llm.abort("id"), bool)
"""
WRONG = (
    "LLM(n_treads=4)",
    "LLM(n_threads='4')",
    "LLM(n_gpu_layers='most')",
    "LLM(max_num_seqs=None)",
    "LLM(speculative_config={'method': 'ngram'})",
    "LLM().generate(5)",
    "LLM().generate('a', 5)",
    "LLM().generate('a').outputs",
    "LLM().generate('a')[0].outputs[0].txt",
    "LLM().generate('a')[0].stats.speedup + 1",
    "LLM().chat('hello')",
    "LLM().generate('a')[0].outputs[0].text = 'b'",
    "[part for part in AsyncLLM().generate('a')]",
)


def test_right_uses_pass_and_wrong_ones_do_not(tmp_path: Path) -> None:
    """One run of mypy for both, as it takes its time: each wrong line, and no other, is complained of."""
    wrong = [f"def f{i}() -> None: {line}" for i, line in enumerate(WRONG)]
    lines = [*USES.strip().splitlines(), "", *wrong]
    file = tmp_path / "uses.py"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200, check=False)
    with_errors = {int(n) for n in re.findall(r"uses\.py:(\d+): error", done.stdout)}
    first = len(lines) - len(wrong) + 1
    assert with_errors == set(range(first, len(lines) + 1)), done.stdout + done.stderr
