"""Schemas and grammars that no model could use are known before one is loaded."""

from __future__ import annotations

import pytest

from specllama.cli.app import run_app
from specllama.errors import UsageError
from specllama.text.grammar import check


@pytest.mark.parametrize(
    ("schema", "grammar", "why"),
    [
        ('{"type": "nope"}', None, "Invalid type: nope"),
        ("{", None, "is not JSON"),
        ("[]", None, "must be an object"),
        ('{"type": "integer", "minimum": 5, "maximum": 3}', None, "greater than"),
        ('{"type": "string", "pattern": "(?<=a)b"}', None, "look-around"),
        ('{"a": ' * 400 + "1" + "}" * 400, None, "nested deeper"),
        (None, 'root ::= "a" | b', "there is no rule 'b'"),
        (None, 'start: "a" b', "unknown name"),
        (None, 'start: "a\0"', "NUL"),
    ],
)
def test_what_cannot_be_used_is_refused(schema: str | None, grammar: str | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(schema, grammar)


@pytest.mark.parametrize(
    ("schema", "grammar"),
    [
        (None, None),
        ("true", None),
        (
            '{"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}',
            None,
        ),
        (None, 'root ::= <|im_start|> "a"'),  # whether there is such a token is known with the model
        (None, 'start: "a" /[b-c]+/'),
    ],
)
def test_others_wait_for_the_model(schema: str | None, grammar: str | None) -> None:
    check(schema, grammar)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_the_schema_is_read_before_the_model(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["-p", "x"] if command == "run" else []
    assert run_app([command, "-m", "missing.gguf", *prompt, "-j", '{"type": "nope"}']) == 2
    assert "the JSON schema cannot be used: Invalid type: nope" in capsys.readouterr().err
