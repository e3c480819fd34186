"""The protocol between a front and its engine process."""

from __future__ import annotations

import dataclasses
import json
import time
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.client import child
from specllama.client import protocol as m
from specllama.client.child import LineBuffer, LineTooLongError
from specllama.client.model_info import LoadInfo, ModelInfo
from specllama.client.protocol import decode, encode
from specllama.config.load import LoadSettings, ModelSettings
from specllama.core.sampling.params import SamplingParams
from specllama.core.stats import RunStats
from specllama.errors import Note
from tests.support.examples import examples
from tests.support.generations import generate

KINDS = get_args(m.Message)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MODELS = st.builds(
    ModelSettings,
    path=st.text(max_size=9),
    n_ctx=st.integers(0, 2**31 - 1),
    devices=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    tensor_split=st.lists(st.floats(0, 1e9), max_size=2).map(tuple),
    override_tensor=st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), max_size=2).map(tuple),
    lora=st.lists(st.tuples(st.text(max_size=3), st.floats(-9, 9)), max_size=2).map(tuple),
    rope_scale=st.none() | st.floats(0.1, 9),
)
SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    ModelSettings: MODELS,
    LoadSettings: st.builds(
        LoadSettings,
        target=MODELS,
        draft=st.none() | MODELS,
        n_slots=st.integers(1, 99),
        draft_max=st.none() | st.integers(1, 500),
        draft_p_min=st.floats(0, 1),
        exact=st.booleans(),
        rpc=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    ),
    SamplingParams: st.builds(
        SamplingParams,
        temperature=st.floats(0, 2),
        logit_bias=st.dictionaries(
            st.integers(0, 2**31 - 1), st.just(-float("inf")) | st.floats(-9, 9), max_size=3
        ),
        seed=st.none() | st.integers(0, 2**64 - 1),
        stop=st.lists(st.text(min_size=1, max_size=4), max_size=2).map(tuple),
        grammar=st.none() | st.just("root ::= 'a'"),
        logprobs=st.none() | st.integers(0, 20),
    ),
    Any: JSON,
    str: st.text(max_size=9),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    type(None): st.none(),
}  # fmt: skip


SEVEN, EIGHT = m.CandidateLogprob(7, "a", [97], -0.5), m.CandidateLogprob(8, "\ufffd", [0xC3], None)


def of(hint: Any) -> st.SearchStrategy[Any]:
    """A strategy for values of a type, from its type hints."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in SPECIAL:
        return SPECIAL[hint]
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([of(arg) for arg in args])
    if origin in (list, Sequence):
        return st.lists(of(args[0]), max_size=3)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(of(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, args))
    if origin in (dict, Mapping):
        return st.dictionaries(of(args[0]), of(args[1]), max_size=3)
    if origin is Counter:
        return st.dictionaries(of(args[0]), st.integers(0, 99), max_size=3).map(Counter)
    hints = get_type_hints(hint)
    if is_dataclass(hint):
        return st.builds(hint, **{f.name: of(hints[f.name]) for f in fields(hint)})
    return st.builds(hint, **{name: of(part) for name, part in hints.items()})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_message_arrives_as_it_was_sent(kind: type[m.Message]) -> None:
    @settings(max_examples=examples(25), deadline=None)
    @given(of(kind))
    def check(message: m.Message) -> None:
        line = encode(message)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert decode(line) == message

    check()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_rejects_unknown_and_missing_keys(kind: type[m.Message]) -> None:
    @settings(max_examples=5, deadline=None)
    @given(of(kind))
    def check(message: m.Message) -> None:
        name, body = json.loads(encode(message))
        with pytest.raises(ValueError, match="unknown key 'further'"):
            decode(json.dumps([name, {**body, "further": 1}]).encode())
        needed = [f.name for f in fields(kind) if f.default is f.default_factory is dataclasses.MISSING]
        for key in needed:
            with pytest.raises(ValueError, match=f"{key}.* is missing"):
                decode(json.dumps([name, {k: v for k, v in body.items() if k != key}]).encode())

    check()


@pytest.mark.parametrize(
    "message",
    [
        generate(3, prompt="line\nline \u2028 \x00 😀", params={"temperature": 0.5, "seed": 2**64 - 1}),
        generate(4, messages=[{"role": "user", "content": "\n"}], speculate=False, variables={"tools": []}),
        generate(5, ids=[1, 2, 3], forced=[4, 5]),
        m.Tokens([m.SequenceDelta(4, "", [7], [], 0, 0, [m.PositionLogprobs(SEVEN, [SEVEN, EIGHT])])]),
        m.Done(3, "text", "stop", RunStats(n_predict=3, round_seconds={2: (1, 0.5)}), [(4, "target")]),
        m.Failed({"kind": "GGUFError", "message": "no", "hint": ""}),
    ],
    ids=lambda message: type(message).__name__,
)
def test_these_messages_arrive_as_sent_too(message: m.Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("prompt", "key"),
    [
        (m.ChatInput([{"role": "user", "content": "x"}], {"a": 1}, prefix="y", follows=3), "messages"),
        (m.ChatInput([], earlier=m.EarlierTurn(1, 2, [1, 2, 3], "d")), "messages"),
        (m.TextInput(""), "text"),
        (m.MixedInput([[1, 2], "x", []]), "parts"),
        (m.Infill("a", "b", extra=[m.InfillChunk("c")], suffix_first=True), "suffix"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_prompt_of_any_form_arrives_in_its_form(prompt: m.PromptInput, key: str) -> None:
    message = m.Generate(1, prompt)
    assert decode(encode(message)) == message
    name, body = json.loads(encode(message))
    with pytest.raises(ValueError, match="prompt: unknown key 'further'"):
        decode(json.dumps([name, {**body, "prompt": {**body["prompt"], "further": 1}}]).encode())
    without = {k: v for k, v in body["prompt"].items() if k != key}
    with pytest.raises(ValueError, match="prompt: "):
        decode(json.dumps([name, {**body, "prompt": without}]).encode())


def test_every_kind_is_plain_data() -> None:
    for kind in KINDS:
        assert is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
        assert kind.__doc__.startswith(("To the engine", "From the engine"))  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["hi \ud800 there", "\udfff"])
def test_lone_surrogates_are_preserved(text: str) -> None:
    """A terminal can deliver them; the receiver decides what to do."""
    assert decode(encode(m.Notice(text))).text == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"hello\n",
        b"{}\n",
        b"[]\n",
        b'["Cancel"]\n',
        b'["Explode",{}]\n',
        b'["Message",{}]\n',
        b'["Cancel",{"id":1,"more":2}]\n',
        b'["Cancel",{"id":"1"}]\n',
        b'["Cancel",{"id":true}]\n',
        b'["Cancel",{}]\n',
        b'["Cancel",[1]]\n',
        b'["Loading",{"model":"draft","share":null}]\n',
        b'["Tokens",{"items":[[1,"a",[2]]]}]\n',
        b'[["Cancel"],{"id":1}]\n',
        b"3\n",
        b"null\n",
        b"\xff\n",
    ],
)
def test_rejects_malformed_lines(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)


def test_the_request_id_is_found_in_a_rejected_line() -> None:
    assert m.request_id(b'["Generate",{"id":7,"prompt":3}]') == 7
    for line in (b"hello", b"[]", b'["Generate",{}]', b'["Generate",{"id":"7"}]', b'["Generate",null]'):
        assert m.request_id(line) is None


def test_messages_are_compact() -> None:
    assert encode(m.Cancel(3)) == json.dumps(["Cancel", {"id": 3}], separators=(",", ":")).encode() + b"\n"


def test_keys_of_llm_info() -> None:
    """`LLM.info` has these keys."""
    model = ModelInfo("a.gguf", "A", 7, "Q4_0", 0)
    info = LoadInfo(
        target=model, draft=None, verdict=None, n_ctx=512, n_ctx_draft=0, n_vocab=9, n_threads=2,
        drafters=("copy",), memory=True, draft_max=None, longest_draft=64,
        notes=(Note("one"), Note("two", "warning")), off_reason="why", load_seconds=0.5, n_slots=1,
        n_ctx_train=512, file_bytes=99, end_ids=(1, 2), sampling=SamplingParams(), template="t",
        template_works=True, bos_token="<s>", eos_token="</s>",
    )  # fmt: skip
    assert info.to_dict() == {
        "target": {"path": "a.gguf", "name": "A", "params": 7, "quant": "Q4_0", "n_gpu_layers": 0},
        "draft": None, "verdict": None, "n_ctx": 512, "n_ctx_draft": 0, "n_vocab": 9, "n_threads": 2,
        "drafters": ["copy"], "memory": True, "draft_max": None, "most_drafted": 64,
        "notes": ["one", "warning: two"], "speculation": "off", "reason": "why", "load_seconds": 0.5,
        "n_slots": 1, "n_ctx_train": 512, "file_bytes": 99, "end_ids": [1, 2],
        "sampling": asdict(SamplingParams()), "template": "t", "chat_template": True, "bos_token": "<s>",
        "eos_token": "</s>", "head": "", "head_in_target": False, "embedding": None, "vision": False,
        "mmproj": "",
    }  # fmt: skip


# Lines from a stream of bytes, however it is cut.


def test_lines_that_arrive_in_any_parts() -> None:
    text = b"one\n\ntwo three\nfour\nend"
    for size in range(1, len(text) + 1):
        buffer = LineBuffer()
        child = [line for i in range(0, len(text), size) for line in buffer.add(text[i : i + size])]
        assert child == [b"one", b"", b"two three", b"four"], size


def test_a_long_line_takes_linear_time() -> None:
    """Joining what has arrived with every new part would copy 30 GB for 60 MB in parts of 64 kB."""
    buffer, part = LineBuffer(), b"x" * 65536
    began = time.thread_time()
    for _ in range(960):
        assert buffer.add(part) == []
    (line,) = buffer.add(b"\n")
    assert len(line) == 960 * 65536
    assert time.thread_time() - began < 4


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "MAX_BYTES", 100)
    buffer = LineBuffer()
    assert buffer.add(b"x" * 100 + b"\n") == [b"x" * 100]
    assert buffer.add(b"x" * 100) == []
    with pytest.raises(LineTooLongError):
        buffer.add(b"x")
