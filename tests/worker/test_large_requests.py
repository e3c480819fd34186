"""Large texts: refused by their bytes, prepared in another thread, answered in parts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specllama.calls.tools import Tool, Tools
from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.config.store import Store
from specllama.text import grammar
from specllama.worker.engine_core import EngineCore
from specllama.worker.intake import LARGE
from tests.support.front import Front
from tests.support.generations import generate

SOON = 30.0
N_CTX = 512
OF_ONE = {"max_tokens": 1, "seed": 1}


class Threaded(Front):
    """A front whose core prepares large requests in a thread, as in the engine process."""

    posted: queue.SimpleQueue[Callable[[], None]]

    def __init__(self, settings: Any, store: Store, measure_when_idle: bool = False) -> None:
        self.messages, self.settings = [], settings
        self.posted = queue.SimpleQueue()
        self.core = EngineCore(self.messages.append, store, self.posted.put)
        self.core.handle(m.Load(settings, measure_when_idle=measure_when_idle))

    def send(self, message: m.Message, size: int = LARGE + 1) -> list[m.Message]:
        """All messages from the core until it is idle."""
        self.messages.clear()
        self.core.handle(message, size)
        return self.rest()

    def sent_at_once(self, parts: list[str | list[int]]) -> m.Message | None:
        """The first message about a small request, None where it is prepared in the thread."""
        self.messages.clear()
        self.core.handle(generate(1, parts=parts, params=OF_ONE), 100)
        first = self.messages[0] if self.messages else None
        self.rest()
        return first

    def rest(self) -> list[m.Message]:
        ends = time.monotonic() + SOON
        while self.core.busy:
            assert time.monotonic() < ends
            try:
                self.core.run(self.posted.get(timeout=0.01))
            except queue.Empty:
                if self.core.decoding:
                    self.core.step()
        return list(self.messages)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    front = Threaded.of_pair(tmp_path_factory.mktemp("store"), draft_max=0)
    assert isinstance(front, Threaded)
    yield front
    front.close()


@pytest.fixture
def calls(one: Threaded, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that are tokenised."""
    assert one.core.loaded is not None
    model, texts = one.core.loaded.model, list[str]()
    tokenize = model.tokenize

    def counted(text: str, add_special: bool, parse_special: bool) -> list[int]:
        texts.append(text)
        return tokenize(text, add_special, parse_special)

    monkeypatch.setattr(model, "tokenize", counted)
    return texts


def limit(one: Threaded) -> int:
    """Bytes beyond which no text fits."""
    assert one.core.loaded is not None
    return N_CTX * one.core.loaded.model.longest_token


class TestRefused:
    def refused(self, one: Threaded, message: m.Message) -> dict[str, Any]:
        (only,) = one.send(message)
        assert isinstance(only, m.Failed)
        assert only.error["kind"] == "ContextLengthError"
        assert only.error["details"]["n_ctx"] == N_CTX
        return only.error

    def test_texts_of_more_bytes_than_fit_are_not_tokenised(self, one: Threaded, calls: list[str]) -> None:
        long = "é" * (limit(one) // 2 + 1)
        said = [{"role": "user", "content": long}]
        for message in (
            generate(1, prompt=long),
            generate(1, messages=said),
            generate(1, ids=[5] * N_CTX),
            generate(1, parts=["x", [5] * N_CTX]),
            generate(1, parts=[long[1:], [5], "é"]),
            m.Tokenize(1, long),
            m.Render(1, m.ChatInput(said)),
        ):
            self.refused(one, message)
        assert calls == []

    def test_as_many_control_tokens_as_do_not_fit(self, one: Threaded, calls: list[str]) -> None:
        """llama.cpp's time is quadratic in their number."""
        text = "<|im_start|>" * (N_CTX + 1)
        assert len(text) < limit(one)
        error = self.refused(one, generate(1, prompt=text))
        assert error["message"].startswith(f"the prompt has at least {N_CTX + 1} tokens")
        assert "is the least that could hold it: its tokens were not counted" in error["hint"]
        assert calls == []

    def test_ids_whose_text_does_not_fit(self, one: Threaded) -> None:
        assert one.core.loaded is not None
        model = one.core.loaded.model
        longest = max(range(model.n_vocab), key=lambda i: len(model.piece(i)))
        self.refused(one, m.Detokenize(1, [longest] * (N_CTX * 2)))

    def test_a_text_that_only_seems_to_fit_is_counted(self, one: Threaded, calls: list[str]) -> None:
        error = self.refused(one, generate(1, prompt="zip " * N_CTX * 2))
        assert "at least" not in error["message"]
        assert len(calls) == 1


class TestPrepared:
    def test_the_text_is_that_of_a_small_request(self, one: Threaded) -> None:
        request = generate(1, prompt="def read(", params={"max_tokens": 12, "temperature": 0})
        small, large = (fold(one.send(request, size)).text for size in (0, LARGE + 1))
        assert small == large != ""

    def test_choices_share_one_prompt(self, one: Threaded, calls: list[str]) -> None:
        choices = [m.Choice(2, 1, 7), m.Choice(3, 2, 8)]
        for size in (0, LARGE + 1):
            calls.clear()
            messages = one.send(generate(1, prompt="def read(", params=OF_ONE, choices=choices), size)
            assert calls == ["def read("]
            seeds = {f.id: f.params.seed for f in messages if isinstance(f, m.Started)}
            assert seeds == {1: 1, 2: 7, 3: 8}
            assert sorted(f.id for f in messages if isinstance(f, m.Done)) == [1, 2, 3]

    def test_all_choices_get_the_error(self, one: Threaded) -> None:
        request = generate(1, prompt="zip " * 600, params=OF_ONE, choices=[m.Choice(2, 1, 7)])
        for size in (0, LARGE + 1):
            messages = one.send(request, size)
            assert [f.id for f in messages if isinstance(f, m.Failed)] == [1, 2]
            assert len(messages) == 2

    def test_the_decoding_goes_on_meanwhile(self, one: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
        assert one.core.loaded is not None
        model, steps = one.core.loaded.model, list[int]()
        tokenize = model.tokenize

        def slow(text: str, add_special: bool, parse_special: bool) -> list[int]:
            ends = time.monotonic() + SOON
            while len(steps) < 20 and time.monotonic() < ends:
                time.sleep(0.001)
            return tokenize(text, add_special, parse_special)

        one.messages.clear()
        one.core.handle(generate(1, prompt="def f(", params={"max_tokens": 40, "ignore_eos": True}))
        monkeypatch.setattr(model, "tokenize", slow)
        one.core.handle(generate(2, prompt="def g(", params=OF_ONE), LARGE + 1)
        while len(steps) < 20:
            one.core.step()
            steps.append(1)
        assert not any(isinstance(f, m.Started) and f.id == 2 for f in one.messages)
        assert sorted(f.id for f in one.rest() if isinstance(f, m.Done)) == [1, 2]

    def test_a_grammar_is_compiled_there_too(self, one: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
        """That thread waits for the one with a large stack, in which it is compiled."""
        threads, compiled = list[threading.Thread](), grammar.with_large_stack

        def noted(work: Callable[[], Any]) -> Any:
            threads.append(threading.current_thread())
            return compiled(work)

        monkeypatch.setattr(grammar, "with_large_stack", noted)
        for size, name in ((0, "small"), (LARGE + 1, "large")):
            tools = Tools([Tool(name)], "required")
            request = generate(1, messages=[{"role": "user", "content": "x"}], params=OF_ONE, tools=tools)
            assert isinstance(one.send(request, size)[0], m.Started)
        assert [thread is threading.current_thread() for thread in threads] == [True, False]

    def test_a_request_can_be_cancelled(self, one: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
        assert one.core.loaded is not None
        monkeypatch.setattr(one.core.loaded.model, "tokenize", lambda *_: time.sleep(0.3) or [5, 6])
        one.messages.clear()
        request = generate(1, prompt="zip", params=OF_ONE, choices=[m.Choice(2, 1, 7)])
        one.core.handle(request, LARGE + 1)
        one.core.handle(m.Cancel(1))
        assert [(f.id, f.reason) for f in one.messages if isinstance(f, m.Done)] == [(1, "cancel")]
        assert [f.id for f in one.rest() if isinstance(f, m.Started)] == [2]


class TestAnswers:
    TEXT = "def read(path):\n" * 180  # several parts

    def test_a_long_answer_comes_in_parts(self, one: Threaded) -> None:
        assert one.core.loaded is not None
        parts = [
            f for f in one.send(m.Tokenize(1, self.TEXT, with_pieces=True)) if isinstance(f, m.Tokenized)
        ]
        ids = [i for part in parts for i in part.ids]
        assert len(parts) > 1
        assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
        assert ids == one.core.loaded.model.tokenize(self.TEXT, False, True)
        assert b"".join(p.encode("latin-1") for part in parts for p in part.pieces).decode() == self.TEXT
        back = [f for f in one.send(m.Detokenize(1, ids * 4)) if isinstance(f, m.QueriedText)]
        assert len(back) > 1
        assert "".join(part.text for part in back) == self.TEXT * 4

    def test_an_empty_answer_is_one_part(self, one: Threaded) -> None:
        assert one.send(m.Tokenize(1, "")) == [m.Tokenized(1, [])]
        assert one.send(m.Detokenize(1, [])) == [m.QueriedText(1, "")]

    def test_too_many_large_queries_are_refused(self, one: Threaded, monkeypatch: pytest.MonkeyPatch) -> None:
        assert one.core.loaded is not None
        monkeypatch.setattr(one.core.loaded.model, "tokenize", lambda *_: time.sleep(0.2) or [5])
        one.messages.clear()
        for id_ in (1, 2):
            one.core.handle(m.Tokenize(id_, "zip"), 40 * 1024 * 1024)
        answers = {f.id: f for f in one.rest() if isinstance(f, (m.Failed, m.Tokenized))}
        assert isinstance(answers[1], m.Tokenized)
        assert isinstance(answers[2], m.Failed)
        assert answers[2].error["kind"] == "BusyError"


class TestParts:
    """Prompts of texts and ids in turn."""

    def test_each_text_is_tokenised_by_itself(self, one: Threaded, calls: list[str]) -> None:
        parts: list[str | list[int]] = ["def", [7, 8], " read"]
        started, *_, done = self.sent(one, parts, show_prompt=True)
        assert isinstance(started, m.Started)
        assert isinstance(done, m.Done)
        assert calls == ["def", " read"]
        assert one.core.loaded is not None
        model = one.core.loaded.model
        ids = [*model.tokenize("def", model.adds_bos, True), 7, 8, *model.tokenize(" read", False, True)]
        assert started.n_prompt == len(ids)
        (shown,) = one.send(m.Detokenize(1, ids))
        assert isinstance(shown, m.QueriedText)
        assert done.prompt == shown.text

    def test_many_are_prepared_in_the_thread(self, one: Threaded) -> None:
        assert isinstance(one.sent_at_once(["x"] * 10), m.Started)
        assert one.sent_at_once(["x"] * 250) is None

    def test_ids_of_another_vocabulary(self, one: Threaded) -> None:
        (failed,) = self.sent(one, ["x", [1 << 20]])
        assert isinstance(failed, m.Failed)
        assert failed.error["message"].startswith("token ids must be from 0 to")
        assert failed.error["message"].endswith(f", not {1 << 20}")
        assert failed.error["details"] == {"param": "prompt"}

    def sent(self, one: Threaded, parts: list[str | list[int]], **more: Any) -> list[m.Message]:
        return one.send(generate(1, parts=parts, params=OF_ONE, **more), size=100)


def test_biases_of_texts(one: Threaded) -> None:
    assert one.core.loaded is not None
    ids = one.core.loaded.model.tokenize(" read", False, False)
    biases = {" read": -3.0}
    message = generate(1, prompt="x", params={**OF_ONE, "logit_bias": {ids[0]: 2.0}}, text_biases=biases)
    started = one.send(message)[0]
    assert isinstance(started, m.Started)
    assert started.params.logit_bias == dict.fromkeys(ids, -3.0) | {ids[0]: 2.0}


class TestUnexpectedErrors:
    """Whatever preparing a request raises ends that request alone."""

    @pytest.mark.parametrize("size", [0, LARGE + 1])
    def test_of_a_request(self, one: Threaded, size: int) -> None:
        wrong: dict[Any, float] = {5: 1.0}  # no text
        (only,) = one.send(generate(1, prompt="x", text_biases=wrong, params=OF_ONE), size)
        assert isinstance(only, m.Failed)
        assert only.id == 1
        assert only.error["kind"] == "EngineError"
        assert isinstance(one.send(generate(2, prompt="x", params=OF_ONE), size)[-1], m.Done)

    @pytest.mark.parametrize("size", [0, LARGE + 1])
    def test_of_a_query(self, one: Threaded, size: int) -> None:
        wrong: Any = 5
        (only,) = one.send(m.Tokenize(1, wrong), size)
        assert isinstance(only, m.Failed)
        assert (only.id, only.error["kind"]) == (1, "EngineError")


ODD: list[Any] = [None, True, -1, 1.5, "", "x", [], [[]], [None], {}, [{}], {"a": []}, 2**70, 1e308]
KEYWORDS = [
    "required", "properties", "type", "enum", "const", "items", "prefixItems", "anyOf", "allOf", "oneOf",
    "$ref", "$defs", "pattern", "format", "minItems", "maxLength", "minimum", "additionalProperties",
    "propertyNames", "not", "if", "dependentSchemas", "patternProperties", "description", "multipleOf",
    "uniqueItems", "",
]  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("inside", [False, True])
def test_schemas_of_any_form(one: Threaded, keyword: str, inside: bool) -> None:
    """Ollama looks at names and descriptions alone; nothing in a schema is an error of the engine."""
    for value in ODD:
        schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, keyword: value}
        if inside:
            schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": schema}}
        said, tools = [{"role": "user", "content": "x"}], Tools([Tool("f", "", schema)])
        *_, last = one.send(generate(1, messages=said, tools=tools, params=OF_ONE), size=0)
        if not isinstance(last, m.Done):
            assert isinstance(last, m.Failed)
            assert (last.error["kind"], last.error["details"]["param"]) == ("UsageError", "tools"), value
