"""Tool calls in the real llguidance: drafts change nothing, wherever in them a call begins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from specllama.calls.format import AnswerShape
from specllama.calls.formats import GENERIC
from specllama.calls.tools import Tool, Tools
from specllama.core.engine import Engine
from specllama.core.policy.fixed import Fixed
from specllama.core.sampling.params import SamplingParams
from specllama.core.sequence import Request
from specllama.drafters.grammar import GrammarDrafter
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.testing import TableContext, table_row
from specllama.text.grammar import Grammars
from specllama.worker.tool_calls import ToolCalls
from tests.support.scripted import ScriptedDrafter

CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Riga"]}}, "required": ["city"]}
TOOLS = Tools([Tool("weather", "", CITY), Tool("wait")], parallel=False)
DRAFT = 8
CALL = '<tool_call>\n{"name": "w'


class Model:
    """A model that wants to write `script`, whatever it has written instead, and then anything."""

    def __init__(self, vocabulary: LlamaModel, script: Sequence[int], prompt: Sequence[int]) -> None:
        self.vocabulary, self.script, self.prompt = vocabulary, script, list(prompt)

    def rows(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = table_row(ids, self.vocabulary.n_vocab)
        at = len(ids) - len(self.prompt)
        if at < len(self.script):
            row[self.script[at]] += 60
        return row

    def text(self, mask_of, drafters: Sequence, temperature: float) -> tuple[list[int], str]:
        context = TableContext(self.vocabulary.n_vocab, rows=self.rows)
        policy = Fixed(list(drafters), DRAFT if drafters else 0)
        engine = Engine(context, policy, end_ids=self.vocabulary.end_ids, clock=itertools.count().__next__)
        params = SamplingParams(temperature=temperature, max_tokens=64, top_k=0)
        generation = engine.submit(Request(self.prompt, params, 5, mask=mask_of()))
        while engine.busy:
            engine.step()
        ids = [i for i in generation.output if i not in self.vocabulary.end_ids]
        return ids, b"".join(map(self.vocabulary.piece, ids)).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def grammars(target: LlamaModel) -> Grammars:
    return Grammars(target)


@pytest.mark.parametrize("offset", range(DRAFT))
@pytest.mark.parametrize("event", ["a call", "the end of the reasoning"])
def test_text_is_the_same_wherever_a_call_begins_in_a_draft(
    target: LlamaModel, grammars: Grammars, event: str, offset: int
) -> None:
    """The model wants to go on illegally after the trigger, so that the mask there decides."""
    filler = target.tokenize(" a b c d e f g h i j", False, False)[: offset + 1]
    trigger = target.tokenize("</think>" if event != "a call" else "<tool_call>", False, False)
    wrong = target.tokenize(" and so on, for ever", False, False)
    script = [*filler, *trigger, *wrong]
    shape = AnswerShape(("<think>", "</think>"), opened=True) if event != "a call" else AnswerShape()
    tools = Tools(TOOLS.tools, "auto" if event == "a call" else "required", parallel=False)
    grammar = GENERIC.grammar(tools, shape)
    model = Model(target, script, target.tokenize("Ask:", True, False))
    drafted: list[list[int]] = []

    def guess(history: Sequence[int], draft: Sequence[int]) -> int | None:
        at = len(history) + len(draft) - len(model.prompt)
        drafted.append([*draft])
        return script[at] if at < len(script) else None

    for temperature in (0.0, 0.9):
        plain, text = model.text(lambda: grammars.mask(tools=grammar), (), temperature)
        assert CALL in text
        assert plain[: len(filler) + len(trigger)] == script[: len(filler) + len(trigger)]
        for drafters in ((ScriptedDrafter(guess),), (GrammarDrafter(), ScriptedDrafter(guess))):
            drafted.clear()
            assert model.text(lambda: grammars.mask(tools=grammar), drafters, temperature)[0] == plain
            inside = [d for d in drafted if d[offset : offset + len(trigger)] == trigger]
            assert inside or len(drafters) > 1 or offset + len(trigger) > DRAFT - 1


def test_a_schema_holds_after_the_reasoning(target: LlamaModel, grammars: Grammars) -> None:
    """Of an answer without tools, where the prompt has opened the reasoning."""
    calls = ToolCalls(target, "", None)
    params = SamplingParams(json_schema={"enum": ["yes", "no"]})
    assert calls.grammar(None, params, "") is calls.grammar(None, SamplingParams(), "</think>") is None
    grammar = calls.grammar(None, params, "</think>")
    script = target.tokenize(" so</think> and so on, for ever", False, False)
    model = Model(target, script, target.tokenize("Ask:", True, False))
    for drafters in ((), (GrammarDrafter(),)):
        _, text = model.text(lambda: grammars.mask(tools=grammar), drafters, 0.0)
        thought, _, answer = text.partition("</think>")
        assert thought == " so"
        assert json.loads(answer) in ("yes", "no")


def test_no_reasoning_before_a_call_where_the_prompt_ends_after_it(target: LlamaModel) -> None:
    calls, tools = ToolCalls(target, "<think>", None), Tools([Tool("f")], "required")
    assert "<think>" in str(calls.grammar(tools, SamplingParams(), ""))
    assert "<think>" not in str(calls.grammar(tools, SamplingParams(), "", begun=True))


@pytest.mark.parametrize(
    ("source", "reasons"),
    [
        ("{{ messages }}", False),
        ("<think>", True),
        ("{% if tools %}<|channel|>analysis<|message|> commentary to=functions.f", True),
        ("{% if tools %}<|tool_call>call:f <|channel>thought", True),
    ],
)
def test_models_that_reason(target: LlamaModel, source: str, reasons: bool) -> None:
    assert ToolCalls(target, source, None).reasons is reasons


def test_how_families_end_their_reasoning(target: LlamaModel) -> None:
    """After a budget: gpt-oss goes on with the final channel, or with any where the answer may be calls."""
    oss = ToolCalls(target, "{% if tools %}<|channel|>analysis<|message|> commentary to=functions.f", None)
    final = "<|end|><|start|>assistant<|channel|>final<|message|>"
    for with_tools, end in ((False, final), (True, "<|end|><|start|>assistant")):
        form = oss.reasoning_form(with_tools, "", False, "<|start|>assistant")
        opening, closing = "<|channel|>analysis<|message|>", "<|end|>"
        assert (form.tags, form.within, form.open) == ([(opening, closing, end, final)], True, None)
    assert oss.reasoning_form(False, "", True, "hm").open is not None  # the prompt has its beginning
    gemma = ToolCalls(target, "{% if tools %}<|tool_call>call:f <|channel>thought", None)
    (tags,) = gemma.reasoning_form(True, "", False, "").tags
    assert tags == ("<|channel>thought\n", "<channel|>", "<channel|>", "<channel|>")
    assert gemma.reasoning_form(True, "", False, "model\n<|channel>thought\n").open == tags
    qwen = ToolCalls(target, "<think>", None)
    form = qwen.reasoning_form(False, "</think>", False, "<think>\n")
    assert (form.within, form.open and form.open.end) == (False, "\n</think>\n\n")
    assert {tags.opening for tags in form.tags} >= {"<think>", "[THINK]"}
    assert qwen.reasoning_form(False, "", False, "assistant\n").open is None


def test_efforts_are_budgets_where_the_template_knows_none(target: LlamaModel) -> None:
    free, given = SamplingParams(), SamplingParams(reasoning_budget=5)
    plain = ToolCalls(target, "<think>", None)
    levels = ToolCalls(target, "<think>{{ reasoning_effort }}", None)
    for effort, budget in (("none", 0), ("minimal", 512), ("low", 2048), ("medium", 8192), ("high", -1)):
        assert plain.budget(free, {"reasoning_effort": effort}) == budget
        assert plain.budget(given, {"reasoning_effort": effort}) == 5
        assert levels.budget(free, {"reasoning_effort": effort}) == -1
    assert plain.budget(free, {}) == plain.budget(free, {"reasoning_effort": 5}) == -1
    assert plain.note_budget() == ""
    without = ToolCalls(target, "{{ messages }}", None)
    assert "knows no reasoning" in without.note_budget()
    assert without.note_budget() == ""  # once


def test_the_format_that_the_user_names(target: LlamaModel) -> None:
    source = "{{ tools }}[TOOL_CALLS][ARGS]"
    assert ToolCalls(target, source, None).format.name == "mistral"
    assert ToolCalls(target, source, None, "qwen-xml").format.name == "qwen-xml"
    channels = "{% if tools %}<|channel|>analysis<|message|> commentary to=functions.f"
    assert ToolCalls(target, channels, None, "hermes").reasons
    with pytest.raises(UsageError, match="no call format 'other'"):
        ToolCalls(target, source, None, "other")
