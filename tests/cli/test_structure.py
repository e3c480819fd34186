"""Structured output and log probabilities as users ask for them."""

from __future__ import annotations

import json
import math

import pytest

from tests.support.command import Command, assert_error

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "module": {"enum": ["os", "shutil", "json"]},
        "pure": {"type": "boolean"},
    },
    "required": ["name", "module", "pure"],
    "additionalProperties": False,
}
ASK = ("-p", "Describe shutil.copytree as JSON.", "-s", "3")


def test_a_schema_is_obeyed_and_drafts_change_nothing(shared: Command) -> None:
    (shared.home / "schema.json").write_text(json.dumps(SCHEMA))
    texts = [
        shared.generate(*ASK, *how).out
        for how in (
            ("-j", json.dumps(SCHEMA)),
            ("-jf", "schema.json"),
            ("--json-schema-file", "schema.json", "--draft-max", "7"),
            ("--json-schema", json.dumps(SCHEMA), "--draft-max", "0"),
        )
    ]
    assert len(set(texts)) == 1
    parsed = json.loads(texts[0])
    assert set(parsed) == {"name", "module", "pure"}
    assert parsed["module"] in ("os", "shutil", "json")


def test_the_summary_counts_forced_tokens(shared: Command) -> None:
    result = shared.generate(*ASK, "-j", json.dumps(SCHEMA), "--draft-max", "7", "-v")
    assert "+ grammar + copy, length up to 7" in result.err
    assert any(line.startswith("n_forced  = ") and "of the text" in line for line in result.lines)
    answer = shared.generate(*ASK, "-j", json.dumps(SCHEMA), "--draft-max", "7", "--json").json
    assert answer["n_forced"] >= answer["n_forced_accept"] > 0
    assert answer["drafted_by"]["grammar"] == answer["n_forced"]
    assert sum(n for name, n in answer["drafted_by"].items() if name != "grammar") == answer["n_drafted"]
    assert json.loads(answer["text"]).keys() == {"name", "module", "pure"}


def test_without_a_grammar_the_summary_does_not_mention_it(shared: Command) -> None:
    result = shared.generate(*ASK, "-n", "8", "--json")
    assert "grammar" not in result.err
    assert not {"n_forced", "n_forced_accept", "logprobs"} & result.json.keys()
    only = shared.generate(*ASK, "-n", "8", "--drafters", "grammar")
    assert only.lines[0].startswith("speculation off: ")


def test_grammars_are_obeyed(shared: Command) -> None:
    (shared.home / "answer.gbnf").write_text('root ::= "yes" | "no"\n')
    for how in (("--grammar", 'root ::= "yes" | "no"'), ("--grammar-file", "answer.gbnf")):
        assert shared.generate(*ASK, *how).out in ("yes\n", "no\n")


def test_gbnf_is_llama_cpps(shared: Command) -> None:
    grammars = {
        r'root ::= "caf\u00e9ab"': "caféab",
        r'root ::= "\u0041bc"': "Abc",
        r'root ::= "\u00e9"': "é",
        r'root ::= "\U0001F600"': "😀",
        r"root ::= [\u00e0-\u00e0]{2}": "àà",
        'root ::= start\nstart ::= "a"': "a",
        'root ::= <[5]> "b"': "#b",
    }
    few = ("-n", "8", "--raw", "--temp", "0", "--json", "--no-calibrate")
    results = shared.many(*(("run", "-p", "def x(", *few, "--grammar", grammar) for grammar in grammars))
    assert [result.json["text"] for result in results] == list(grammars.values())


@pytest.mark.parametrize(
    ("args", "code", "needle"),
    [
        (("-j", "{"), 2, "JSON"),
        (("-j", "[1]"), 2, "object"),
        (("-j", '{"type": "nonsense"}'), 2, "nonsense"),
        (("-j", '{"enum": []}'), 2, "JSON schema"),
        (("-j", "[" * 9000), 2, "JSON"),
        (("-j", ""), 2, "JSON"),
        (("-jf", "absent.json"), 3, "absent.json"),
        (("-jf", "."), 2, "-jf"),
        (("--grammar", "root ::= ((("), 2, "grammar"),
        (("--grammar", 'root ::= "a" root'), 2, "grammar"),
        (("--grammar", " "), 2, "grammar"),
        (("--grammar", b"root ::= \xff"), 2, "grammar"),
        (("--grammar-file", "absent.gbnf"), 3, "absent.gbnf"),
        (("-j", "{}", "--grammar", "x"), 2, "both"),
        (("-j", "{}", "-jf", "absent.json"), 2, "both"),
        (("--logprobs", "21", "--json"), 2, "logprobs"),
        (("--logprobs", "-1", "--json"), 2, "logprobs"),
        (("--logprobs", "x", "--json"), 2, "logprobs"),
        (("--logprobs", "2"), 2, "--json"),
    ],
)
def test_bad_input_is_one_clear_line(shared: Command, args: tuple[str, ...], code: int, needle: str) -> None:
    result = shared("run", *ASK, *args, timeout=30)
    assert_error(result, code)
    error = next(line for line in result.lines if line.startswith("error: "))
    assert needle in error or needle in result.err
    assert len(error) < 500


def test_logprobs_are_in_the_object(shared: Command) -> None:
    args = (*ASK, "-n", "12", "--ignore-eos", "--json", "--logprobs", "3")
    drafted, plain = (shared.generate(*args, "--draft-max", n).json for n in ("7", "0"))
    assert [entry["id"] for entry in drafted["logprobs"]] == drafted["tokens"]
    assert "".join(entry["token"] for entry in drafted["logprobs"]) == drafted["text"]
    for mine, other in zip(drafted["logprobs"], plain["logprobs"], strict=True):
        assert mine["logprob"] == pytest.approx(other["logprob"], abs=0.3)  # batches round otherwise
        assert len(mine["top_logprobs"]) == 3
        values = [entry["logprob"] for entry in mine["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) < 1.0001
