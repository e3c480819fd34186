"""LLM and AsyncLLM with images, by a tiny model and a projector of random weights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as pillow

from specllama import LLM, AsyncLLM
from specllama.errors import UsageError
from tests.support import tiny_mmproj, tinygguf

pytestmark = pytest.mark.usefixtures("vision")
RED, BLUE = (pillow.new("RGB", (64, 48), colour) for colour in ("red", "blue"))
SHORT = {"max_tokens": 3, "temperature": 0}
OPTIONS: dict[str, Any] = {"max_model_len": 512, "n_gpu_layers": 0, "calibrate": False}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tiny_mmproj.gemma3(folder / "mmproj-m.gguf")
    return str(tinygguf.gemma3(folder / "m.gguf"))


def test_chats_and_prompts(model: str, tmp_path: Path) -> None:
    file = tmp_path / "red.png"
    RED.save(file)
    with LLM(model, max_num_seqs=1, **OPTIONS) as llm:
        assert llm.info["vision"] is True
        by_forms = [
            llm.chat([{"role": "user", "content": ["look", image]}], SHORT)[0]
            for image in (RED, file, {"type": "image", "image": str(file)}, np.asarray(RED))
        ]
        assert {output.outputs[0].text for output in by_forms} != {""}
        (n,) = {output.stats.n_prompt for output in by_forms}
        assert n > tiny_mmproj.SIDE**2
        assert by_forms[1].stats.n_reused > tiny_mmproj.SIDE**2
        prompts: list[Any] = [{"prompt": "look", "multi_modal_data": {"image": [RED, BLUE]}}, "look"]
        two, none = llm.generate(prompts, {**SHORT, "n": 2})
        assert two.stats.n_prompt > none.stats.n_prompt + 2 * tiny_mmproj.SIDE**2
        assert two.prompt == "<__media__><__media__>look"
        assert len(two.outputs) == 2
        tokenizer = llm.get_tokenizer()
        shown = tokenizer.apply_chat_template(
            [{"role": "user", "content": ["look", RED]}], tokenize=False, add_generation_prompt=True
        )
        assert "look<__media__>" in shown  # type: ignore[operator]
        with pytest.raises(UsageError, match=r"prompt 1: .*is not an image"):
            llm.generate(["a", {"prompt": "b", "multi_modal_data": {"image": b"no"}}], SHORT)
        assert llm.generate("a", SHORT)[0].finished


def test_event_loops(model: str) -> None:
    async def ask() -> None:
        async with AsyncLLM(model, **OPTIONS) as llm:
            messages = [{"role": "user", "content": ["look", RED]}]
            outputs = [output async for output in llm.chat(messages, SHORT)]
            assert outputs[-1].stats.n_prompt > tiny_mmproj.SIDE**2
            pieces = [piece async for piece in llm.stream(messages, SHORT)]
            assert pieces[-1].output.finished

    asyncio.run(ask())


def test_a_model_that_reads_text_only(model: str) -> None:
    with LLM(model, mmproj=False, **OPTIONS) as llm:
        with pytest.raises(UsageError, match="cannot read images") as error:
            llm.chat([{"role": "user", "content": ["look", RED]}], SHORT)
        assert "mmproj='" in error.value.hint
        assert "mmproj-m.gguf" in error.value.hint
        asked = [{"role": "user", "content": ["look", RED]}, {"role": "user", "content": "and?"}]
        assert llm.chat(asked, SHORT)[0].finished
