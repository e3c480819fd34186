"""Reasoning in channels in LLM.chat and on the command line, where there are no tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama import LLM, SamplingParams
from tests.support.channels import ANSWER, JSON, SCHEMA, TAGGED, TEMPLATE, TEXT, TO_FINAL, gpt_oss, spelt_out
from tests.support.command import Command

ASK = [{"role": "user", "content": "Say hello."}]
SCRIPT = SamplingParams(max_tokens=60, temperature=0.0, grammar=spelt_out())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt_oss(tmp_path_factory.mktemp("channels") / "oss.gguf")


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(model=str(path), speculative_model=None, chat_template=TEMPLATE, max_model_len=512) as llm:
        yield llm


def test_a_chat_has_reasoning_between_tags(llm: LLM) -> None:
    (answer,) = llm.chat(ASK, SCRIPT)[0].outputs
    assert (answer.text, answer.finish_reason) == (TAGGED, "stop")
    deltas = list(llm.stream(ASK, SCRIPT))
    assert "".join(delta.text for delta in deltas) == TAGGED
    assert all(sum(n for n, _ in delta.runs) == len(delta.text) for delta in deltas)
    assert [i for delta in deltas for i in delta.token_ids] == list(answer.token_ids)
    again = llm.chat([*ASK, answer.message, *ASK], SCRIPT)[0].outputs[0]
    assert again.text == TAGGED
    shown = llm.chat([*ASK, {"role": "assistant", "content": TEXT}, *ASK], SCRIPT)[0].outputs[0]
    assert again.stats.n_prompt == shown.stats.n_prompt  # the earlier reasoning is not shown to the model


def test_a_raw_prompt_stays_raw(llm: LLM) -> None:
    (answer,) = llm.generate("<|start|>assistant", SCRIPT)[0].outputs
    assert answer.text == ANSWER  # llama.cpp always writes the tokens of these channels


def test_a_schema_holds_in_the_final_channel(llm: LLM) -> None:
    params = SamplingParams(max_tokens=100, json_schema=SCHEMA, temperature=0.0, logit_bias=TO_FINAL)
    (answer,) = llm.chat(ASK, params)[0].outputs
    assert (answer.text, answer.finish_reason) == (JSON, "stop")


def test_run_and_chat(command: Command, path: Path) -> None:
    (command.home / "template.jinja").write_text(TEMPLATE)
    (command.home / "script.lark").write_text(spelt_out())
    args = (
        "-m",
        str(path),
        "-md",
        "none",
        "--chat-template-file",
        "template.jinja",
        "--no-calibrate",
        "-c",
        "512",
    )
    args += ("--grammar-file", "script.lark", "-n", "60", "--temp", "0")
    result = command("run", *args, "-p", "Say hello.")
    assert (result.code, result.out) == (0, f"{TAGGED}\n"), result.err
    result = command("run", *args, "-p", "Say hello.", "--json")
    assert json.loads(result.raw)["text"] == TAGGED
    result = command("chat", *args, stdin=b"Say hello.\nAgain.\n/save saved.json\n")
    assert (result.code, result.out) == (0, f"{TAGGED}\n\n{TAGGED}\n"), result.err
    saved = json.loads((command.home / "saved.json").read_text())["messages"]
    assert [m["content"] for m in saved if m["role"] == "assistant"] == [TAGGED] * 2
