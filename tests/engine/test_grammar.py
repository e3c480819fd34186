"""Grammars, log probabilities and conversations in the real llama.cpp and the real llguidance."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from typing import Any

import jsonschema
import numpy as np
import pytest

from specllama.client import protocol as m
from specllama.client.stream import fold
from specllama.core.interfaces import BatchRow, MaskError
from specllama.errors import UsageError
from specllama.llama.model import LlamaModel
from specllama.text.grammar import GrammarMask, Grammars
from tests.support.front import Front
from tests.support.json_schemas import SCHEMAS
from tests.unit.core.test_sampling import log_softmax

ASK = [{"role": "user", "content": "Describe shutil.copytree as JSON."}]
CODE = "def total(items):\n    result = 0\n    for i in items:\n        result += i\n    return result\n"
RENAME = [{"role": "user", "content": f"Rename `result` to `payload` in this code:\n{CODE}"}]
LARK = 'start: ("yes" | "no") (" " /[a-z]{2,4}/)? "\\n"'
GBNF = 'root ::= ("yes" | "no") (" " [a-z]{2,4})? "\\n"'


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """The embedded pair with a fixed draft length of 7, since the default depends on measured times."""
    front = Front.of_pair(tmp_path_factory.mktemp("store"), draft_max=7)
    yield front
    front.close()


@pytest.fixture(scope="module")
def grammars(front: Front) -> Grammars:
    assert front.core.loaded is not None
    return front.core.loaded.grammars


def model_of(front: Front) -> LlamaModel:
    assert front.core.loaded is not None
    return front.core.loaded.model


def mask_of(grammars: Grammars, schema: Any = None, grammar: str | None = None) -> GrammarMask:
    mask = grammars.mask(json_schema=None if schema is None else json.dumps(schema), grammar=grammar)
    assert mask is not None
    return mask


def test_a_compiled_grammar_is_reused_within_its_scope(grammars: Grammars, monkeypatch) -> None:
    """Compiling takes time, so that a grammar known from another scope would show that it was used there."""
    compiled, compile_ = [], grammars._compile
    monkeypatch.setattr(
        grammars, "_compile", lambda *given: compiled.append(given) or compile_(*given), raising=True
    )
    for scope in ("key 1", "key 1", "key 2", "key 1", "key 2"):
        assert grammars.mask(json_schema='{"const": "only here"}', scope=scope) is not None
    assert len(compiled) == 2


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid_and_independent_of_drafts(front: Front, name: str) -> None:
    for temperature in (0.0, 1.2):
        params = {"temperature": temperature, "seed": 7, "max_tokens": 400, "json_schema": SCHEMAS[name]}
        drafted = front.text(messages=ASK, params=params)
        assert isinstance(front.messages[-1], m.Done)
        assert front.messages[-1].reason == "stop"
        jsonschema.validate(json.loads(drafted), SCHEMAS[name])
        assert front.text(messages=ASK, params=params, speculate=False) == drafted


def test_forced_tokens_are_counted_separately(front: Front) -> None:
    schema = {
        "type": "object",
        "properties": {"first_long_key": {"type": "boolean"}, "second_long_key": {"type": "boolean"}},
        "required": ["first_long_key", "second_long_key"],
        "additionalProperties": False,
    }
    items = front.items(messages=ASK, params={"json_schema": schema, "seed": 1})
    done = front.messages[-1]
    assert isinstance(done, m.Done)
    assert done.stats.n_forced >= done.stats.n_forced_accept > 5
    assert done.stats.drafted_by["grammar"] == done.stats.n_forced
    runs = [run for item in items for run in item.runs] + list(done.runs)
    assert sum(n for n, source in runs if source == "grammar") > 10
    assert sum(n for n, _ in runs) == len("".join(item.text for item in items) + done.text)


@pytest.mark.parametrize(
    "grammar", [GBNF, 'start: ("yes" | "no") (" " /[a-z]{2,4}/)? "\\n"'], ids=["gbnf", "lark"]
)
def test_grammars_of_both_kinds(front: Front, grammar: str) -> None:
    texts = {front.text(messages=ASK, params={"grammar": grammar, "seed": i}) for i in range(8)}
    for text in texts:
        word, _, rest = text.removesuffix("\n").partition(" ")
        assert text.endswith("\n")
        assert word in ("yes", "no")
        assert rest == "" or (2 <= len(rest) <= 4 and rest.isalpha())
    assert len(texts) > 1


def walk(mask: GrammarMask, seed: int, n_max: int = 40) -> list[int]:
    """Random legal tokens up to an end."""
    rng, output = random.Random(seed), []
    while len(output) < n_max:
        legal = np.flatnonzero(mask.allowed()).tolist()
        token = rng.choice(legal)
        if token in mask._end_ids:
            break
        mask.accept(token)
        output.append(token)
    return output


@pytest.mark.parametrize("name", ["tags", "choice of shapes", "numbers"])
def test_looking_ahead_does_not_change_the_mask(grammars: Grammars, name: str) -> None:
    """Every result after assumed tokens is that of a mask that has accepted them."""
    for seed in range(4):
        output = walk(mask_of(grammars, SCHEMAS[name]), seed)
        mask, rng = mask_of(grammars, SCHEMAS[name]), random.Random(seed)
        for i in range(len(output)):
            ahead = output[i : i + rng.randrange(5)]
            fresh = mask_of(grammars, SCHEMAS[name])
            for token in output[: i + len(ahead)]:
                fresh.accept(token)
            assert (mask.allowed(ahead) == fresh.allowed()).all()
            assert mask.forced(ahead) == fresh.forced()
            legal, token = fresh.allowed(), rng.randrange(fresh._n_vocab)
            assert mask.allows(token, ahead) == legal[token]
            wrong = [*ahead, int(np.flatnonzero(~legal)[0]), 5]
            assert mask.legal(wrong) == len(ahead)
            assert not mask.allows(5, wrong)
            assert not mask.allowed(wrong).any()
            assert mask.forced(wrong) == []
            mask.accept(output[i])


def test_the_end_is_legal_where_the_text_may_end(grammars: Grammars, front: Front) -> None:
    model, mask = model_of(front), mask_of(grammars, grammar='root ::= "ab" "c"?')
    end = min(model.end_ids)
    a, b, c = (model.tokenize(x, False, False)[0] for x in "abc")
    assert not mask.allows(end)
    assert mask.legal([a, end]) == 1
    assert mask.legal([a, b, end, a]) == 3
    assert mask.legal([a, b, c, end]) == 4
    assert mask.allows(end, [a, b])
    for token in (a, b, c):
        mask.accept(token)
    assert set(np.flatnonzero(mask.allowed())) == set(model.end_ids)
    assert mask.forced() == []
    with pytest.raises(MaskError):
        mask.accept(a)


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


BAD_SCHEMAS = {
    "not JSON": "{",
    "not an object": "[1]",
    "false": "false",
    "number": "1",
    "unknown type": '{"type": "nonsense"}',
    "type is a number": '{"type": 5}',
    "unsatisfiable": '{"type": "string", "minLength": 5, "maxLength": 2}',
    "empty enum": '{"enum": []}',
    "conflict": '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
    "unknown reference": '{"$ref": "#/$defs/x"}',
    "reference to itself": '{"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}',
    "another host": '{"$ref": "http://127.0.0.1:9/x.json"}',
    "without end": '{"$defs": {"n": {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}},'
    ' "required": ["c"]}}, "$ref": "#/$defs/n"}',
    "bad pattern": '{"type": "string", "pattern": "((("}',
    "look-ahead": '{"type": "string", "pattern": "(?=a)b"}',
    "not supported": '{"type": "array", "uniqueItems": true}',
    "deep": json.dumps(nested(33)),
    "very deep": "[" * 100_000,
    "large": json.dumps({"enum": ["x" * 1000] * 70}),
    "explosion": json.dumps(
        {
            "allOf": [
                {"anyOf": [{"properties": {f"{k}{i}": {"type": "string"}}} for k in "ab"]} for i in range(20)
            ]
        }
    ),
    "very many keys": json.dumps({"properties": {f"key_{i}": {} for i in range(3000)}}),
    "a long text": '{"items": {"const": "%s"}, "minItems": 100000}' % ("a" * 200),
    "NUL": '{"const": "a"}\0',
    "half a character": r'{"const": "\ud800"}',
    "not UTF-8": '{"const": "\udcff"}',
}
BAD_GRAMMARS = {
    "syntax": "root ::= (((",
    "no root": 'a ::= "b"',
    "unknown rule": "root ::= x",
    "prose": "give me JSON please",
    "without end": 'root ::= "a" root',
    "nesting": "root ::= " + "(" * 5000 + '"a"' + ")" * 5000,
    "large": 'root ::= "' + "a" * 70_000 + '"',
    "repetitions": "root ::= " + '"a"{0,9999} ' * 4000,
    "options": "root ::= " + '"a"? ' * 12_000,
    "alternatives": 'root ::= "a"' + ' | "b"' * 10_000,
    "lark": "start: %%%",
    "a long text": "root ::= r0\n"
    + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(40))
    + 'r40 ::= "a"',
    "NUL": 'root ::= "a"\0',
    "not UTF-8": 'root ::= "\udcff"',
}


@pytest.mark.parametrize("schema", BAD_SCHEMAS.values(), ids=BAD_SCHEMAS)
@pytest.mark.timeout(20)
def test_invalid_schemas_are_rejected(grammars: Grammars, schema: str) -> None:
    with pytest.raises(UsageError) as caught:
        grammars.mask(json_schema=schema)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("grammar", BAD_GRAMMARS.values(), ids=BAD_GRAMMARS)
@pytest.mark.timeout(20)
def test_invalid_grammars_are_rejected(grammars: Grammars, grammar: str) -> None:
    with pytest.raises(UsageError) as caught:
        grammars.mask(grammar=grammar)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "rule", ["r{} ::= r{}\n", "r{}: r{}\n", "T{}: T{}\n"], ids=["gbnf", "lark", "terminals"]
)
def test_a_chain_of_rules_fits_into_the_stack(grammars: Grammars, rule: str) -> None:
    """llguidance recurses once a rule, and ended the process after some three thousand."""
    chain = "".join(rule.format(i, i + 1) for i in range(4000))
    last = rule.format(4000, 0).replace(rule[0] + "0", '"a"').rstrip() + "\n"
    start = "root ::= r0\n" if "::=" in rule else f"start: {rule[0]}0\n"
    assert mask_of(grammars, grammar=start + chain + last).forced()


def test_large_objects_are_supported(front: Front) -> None:
    schema = {"type": "object", "properties": {f"key_{i}": {"type": "boolean"} for i in range(1200)}}
    text = front.text(messages=ASK, params={"json_schema": schema, "max_tokens": 60, "seed": 1})
    assert text.startswith("{")


def test_a_grammar_that_becomes_too_complex_is_an_error(front: Front) -> None:
    schema = {"type": "string", "pattern": "^(([a-z]{1,1000}){1,1000}){40,1000}$"}
    *_, last = front.ask(messages=ASK, params={"json_schema": schema, "max_tokens": 50, "seed": 1})
    assert isinstance(last, m.Failed)
    assert "too complex" in last.error["message"]
    assert not front.core.busy
    assert front.text(messages=ASK, params={"max_tokens": 5})


def test_a_request_with_an_invalid_grammar_fails(front: Front) -> None:
    assert "JSON schema" in front.fails(messages=ASK, params={"json_schema": "{"})
    assert "both" in front.fails(messages=ASK, params={"json_schema": "{}", "grammar": GBNF})
    assert not front.core.busy


@pytest.mark.parametrize("structured", [False, True])
def test_logprobs_are_those_of_single_rows(front: Front, structured: bool) -> None:
    params: dict[str, Any] = {"max_tokens": 60, "temperature": 0.3, "seed": 3, "logprobs": 4}
    params |= {"json_schema": SCHEMAS["person"]} if structured else {"logit_bias": {"300": 1}}
    items = front.items(messages=RENAME, params=params)
    entries = [entry for item in items for entry in item.logprobs or []]
    ids = [i for item in items for i in item.ids]
    assert [entry.chosen.id for entry in entries] == ids
    loaded = front.core.loaded
    assert loaded is not None
    assert front.messages[-1].stats.n_accept + front.messages[-1].stats.n_forced_accept > 0  # type: ignore[union-attr]
    prompt = list(front.prompt_ids(messages=RENAME))
    loaded.context.truncate(0, 0)
    front.core.engine.slots[0].ids = []  # type: ignore[union-attr]
    loaded.context.decode([BatchRow(t, i, 0, False) for i, t in enumerate(prompt[:-1])])
    at, last = len(prompt) - 1, prompt[-1]
    for token, entry in zip(ids, entries, strict=True):
        logs = log_softmax(loaded.context.decode([BatchRow(last, at, 0, True)])[0])
        assert entry.chosen.logprob == pytest.approx(logs[token], abs=0.3)  # batches round differently
        assert [c.logprob for c in entry.top] == pytest.approx(np.sort(logs)[:-5:-1], abs=0.3)
        piece = loaded.model.piece(token) or loaded.model.token_text(token).encode()
        assert bytes(entry.chosen.bytes) == piece
        at, last = at + 1, token
    assert sum(math.exp(c.logprob) for c in entries[0].top) <= 1 + 1e-6
    loaded.context.truncate(0, 0)


def test_logprobs_are_reported_only_on_request(front: Front) -> None:
    assert all(item.logprobs is None for item in front.items(messages=ASK, params={"max_tokens": 9}))
    only = front.items(messages=ASK, params={"max_tokens": 9, "logprobs": 0})
    assert all(item.logprobs and all(entry.top == [] for entry in item.logprobs) for item in only)


def spelled(model: LlamaModel, ids: list[int]) -> bytes:
    return b"".join(model.piece(i) or model.token_text(i).encode() for i in ids)


class TestConversations:
    """Later turns reuse the ids of earlier ones."""

    PARAMS = {"max_tokens": 30, "seed": 5}  # noqa: RUF012

    def say(
        self,
        front: Front,
        id_: int,
        messages: list[dict[str, str]],
        follows: int | None = None,
        **params: Any,
    ):
        *events, done = front.ask(
            id_, messages=messages, params=self.PARAMS | params, follows=follows, variables={}
        )
        assert isinstance(done, m.Done), done
        return fold([*events, done]).text, done

    @pytest.mark.parametrize("max_tokens", [30, 400], ids=["cut off", "ended"])
    def test_a_second_turn_evaluates_only_what_is_new(self, front: Front, max_tokens: int) -> None:
        first = [{"role": "user", "content": "What does shutil.copytree do?"}]
        text, done = self.say(front, 11, first, max_tokens=max_tokens)
        n_kept = done.stats.n_prompt + done.stats.n_predict
        second = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "And zip?"}]
        _, done = self.say(front, 12, second, follows=11)
        new = done.stats.n_prompt - done.stats.n_reused
        assert done.stats.n_prompt - n_kept <= new <= done.stats.n_prompt - n_kept + 1
        assert new < 24

    def test_kept_ids_spell_the_same_prompt(self, front: Front) -> None:
        first = [{"role": "user", "content": "What does json.dumps do?"}]
        text, _ = self.say(front, 21, first)
        second = [
            *first,
            {"role": "assistant", "content": text},
            {"role": "user", "content": "zip <|im_end|>"},
        ]
        self.say(front, 22, second, follows=21)
        model = model_of(front)
        kept = front.prompt_ids(messages=second, follows=21)
        fresh = front.prompt_ids(messages=second)
        spelled = [
            b"".join(model.piece(i) or model.token_text(i).encode() for i in ids) for ids in (kept, fresh)
        ]
        assert spelled[0] == spelled[1]

    @pytest.mark.parametrize("change", ["answer", "question", "unknown turn", "stop string"])
    def test_a_changed_history_is_tokenized_again(self, front: Front, change: str) -> None:
        first = [{"role": "user", "content": "What does os.path.join do?"}]
        more = {"stop": ["e"]} if change == "stop string" else {}
        text, _ = self.say(front, 31, first, **more)
        second = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "zip"}]
        if change == "answer":
            second[1] = {"role": "assistant", "content": text + "!"}
        if change == "question":
            second[0] = {"role": "user", "content": "What does os.path.split do?"}
        follows = 999 if change == "unknown turn" else 31
        assert front.prompt_ids(messages=second, follows=follows) == front.prompt_ids(messages=second)
