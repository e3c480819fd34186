"""All call formats: a call that is written is accepted by the grammar and read again,
however it arrives, and each choice allows what it says.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specllama.calls.format import CallFormat, marked
from specllama.calls.formats import FORMATS, choose, named
from specllama.calls.frame import NINE, FramedFormat
from specllama.calls.scanner import ArgumentsPiece, ClosePiece, OpenPiece, Piece, TextPiece, ThoughtPiece
from specllama.calls.tools import Tool, Tools
from specllama.errors import UsageError
from specllama.text.detokenizer import SHOWN
from tests.support.tool_calls import CALLS, FULL, TOOLS, WEATHER, Call, cuts, grammar, pieces, read

WRITTEN = [form for form in FORMATS if isinstance(form, CallFormat)]
assert len(WRITTEN) == len(FORMATS)
every = pytest.mark.parametrize("form", WRITTEN, ids=lambda form: form.name)
both = pytest.mark.parametrize("as_tokens", [False, True], ids=["text", "tokens"])
SHORT: list[Call] = [("weather", {"city": "a\n b", "when": ["x"]}), ("now", {})]
MIXED: Call = ("weather", {"city": "é\n", "days": -3, "when": ["x"], "near": {"exact": True}})
TEXT = "Paris is 1 < 2 [a] {b} \"c\" 'd'\n\nbye."


def special(form: CallFormat, as_tokens: bool) -> Collection[str]:
    return form.tokens if as_tokens else ()


def several(form: CallFormat) -> bool:
    """Whether an answer may have several calls."""
    return isinstance(form, FramedFormat) and form.parallel


def calls_of(form: CallFormat) -> list[Call]:
    return CALLS if several(form) else CALLS[:1]


def text_of(form: CallFormat, text: str, tokens: Collection[str]) -> str:
    """An answer without calls."""
    return marked(f"<|channel|>final<|message|>{text}", tokens) if form.name == "gpt-oss" else text


@every
@both
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_written_calls_are_accepted_and_read(form: CallFormat, as_tokens: bool, choice: Any) -> None:
    tokens, tools = special(form, as_tokens), Tools(TOOLS, choice)
    compiled = grammar(form, tools, tokens)
    for calls in [[call] for call in CALLS] + ([CALLS] if several(form) else []):
        written = form.write(calls, tokens)
        assert compiled.accepts(written), compiled.accepted(written)
        assert read(form, tools, written, tokens) == ("", calls)
        assert not compiled.begins(written + " bye") or not compiled.accepts(written + " bye")


@every
@both
def test_however_an_answer_arrives(form: CallFormat, as_tokens: bool) -> None:
    tokens, tools = special(form, as_tokens), Tools(TOOLS)
    for calls, everywhere in ((calls_of(form), False), (SHORT if several(form) else SHORT[:1], True)):
        written = form.write(calls, tokens)
        answer = written if form.name in ("gpt-oss", "llama3", "pythonic") else f"So:\n\n{written}\n"
        expected = pieces(form, tools, [answer], tokens)
        assert [piece.name for piece in expected if isinstance(piece, OpenPiece)] == [c[0] for c in calls]
        for parts in cuts(answer) if everywhere else [list(answer)]:
            assert pieces(form, tools, parts, tokens) == expected, parts


@every
def test_letters_of_a_control_token_are_text(form: CallFormat) -> None:
    if form.tokens and form.name != "llama3":  # whose token may be missing
        letters = form.write(CALLS[:1])
        assert read(form, Tools(TOOLS), letters, form.tokens) == (letters, [])
        assert read(form, Tools(TOOLS), letters)[1] == CALLS[:1]


@every
@both
def test_arguments_are_final(form: CallFormat, as_tokens: bool) -> None:
    """What was read is the beginning of what is read when the answer goes on."""
    tokens, tools = special(form, as_tokens), Tools(TOOLS)
    written = form.write([FULL], tokens)
    reader, so_far, whole = form.reader(tools, tokens), "", json.dumps(FULL[1], ensure_ascii=False)
    for character in written:
        for piece in reader.push(character, [(1, "target")]):
            so_far += piece.text if isinstance(piece, ArgumentsPiece) else ""
            assert not isinstance(piece, TextPiece)
        assert whole.startswith(so_far) or json.loads(whole) == FULL[1]
    assert json.loads(so_far) == FULL[1]


@every
@both
def test_an_answer_that_is_cut_off(form: CallFormat, as_tokens: bool) -> None:
    """Calls are whole or missing, and nothing after a call is text."""
    tokens, tools = special(form, as_tokens), Tools(TOOLS)
    written, expected = form.write([FULL], tokens), [FULL]
    if several(form):
        written, expected = form.write([("now", {}), MIXED], tokens), [("now", {}), MIXED]
    for end in range(len(written)):
        text, calls = read(form, tools, written[:end], tokens)
        assert calls == expected[: len(calls)], written[:end]
        assert not calls or text == "", written[:end]
        if len(calls) == len(expected):  # only what closes the call is missing
            assert read(form, tools, written[:end].rstrip() + " ", tokens)[1] == calls


@every
@both
def test_none_is_text(form: CallFormat, as_tokens: bool) -> None:
    tokens, tools = special(form, as_tokens), Tools(TOOLS, "none")
    written = form.write(CALLS[:1], tokens)
    assert not grammar(form, tools, tokens).accepts(written)
    assert grammar(form, tools, tokens).accepts(text_of(form, TEXT, tokens))
    assert read(form, tools, written, tokens)[1] == []
    assert not any(isinstance(piece, OpenPiece) for piece in pieces(form, tools, [written], tokens))


@every
@both
def test_auto_allows_text(form: CallFormat, as_tokens: bool) -> None:
    tokens, tools = special(form, as_tokens), Tools(TOOLS)
    for text in (TEXT, "a", "1 < 2 <tool", '{"a": 1}', "[1, 2]"):
        answer = text_of(form, text, tokens)
        assert grammar(form, tools, tokens).accepts(answer), text
        assert read(form, tools, answer, tokens) == (text, [])


@every
@both
def test_required_is_calls(form: CallFormat, as_tokens: bool) -> None:
    tokens = special(form, as_tokens)
    compiled = grammar(form, Tools(TOOLS, "required"), tokens)
    written = form.write(CALLS[:1], tokens)
    assert not compiled.accepts("")
    assert not compiled.begins("Hello")
    assert not compiled.accepts(text_of(form, "Hello", tokens))
    assert compiled.accepts(written)
    assert min(compiled.ends(written)) > compiled.accepted(written)[0] // 2


@every
@both
def test_names_and_parallel(form: CallFormat, as_tokens: bool) -> None:
    tokens, one, other = special(form, as_tokens), CALLS[0], CALLS[1]
    allowed = Tools(TOOLS, "required", names=["now"])
    assert grammar(form, allowed, tokens).accepts(form.write([other], tokens))
    assert not grammar(form, allowed, tokens).begins(form.write([one], tokens))
    assert read(form, allowed, form.write([one], tokens), tokens)[1] == []
    for choice in ("auto", "required"):
        single = grammar(form, Tools(TOOLS, choice, parallel=False), tokens)
        assert single.accepts(form.write([one], tokens))
        assert not single.accepts(form.write([one, other], tokens))


@every
def test_a_forced_call_is_forced(form: CallFormat) -> None:
    """With one tool without arguments there is nothing to choose but ids, and how lines end."""
    if form.name == "gpt-oss" or form.name == "command-r":
        return
    written = form.write([("now", {})])
    compiled = grammar(form, Tools(TOOLS, "required", names=["now"], parallel=False))
    n, at = 0, 0
    while at < len(written):
        forced = compiled.forced(written[:at])
        assert written.startswith(forced, at)
        n += len(forced)
        at += len(forced) or 1
    free = 9 * form.frame.id.count(NINE) * written.count("0" * 9) if isinstance(form, FramedFormat) else 0
    assert n >= len(written) - free - written.count("\n") - 8


@every
@both
def test_reasoning_before_calls(form: CallFormat, as_tokens: bool) -> None:
    """The shape's reasoning comes first, and a call is required after it, whatever was thought."""
    if form.name == "gpt-oss":
        return
    tokens = special(form, as_tokens)
    written = form.write(CALLS[:1], tokens)
    tags = ("<think>", "</think>")
    opened = grammar(form, Tools(TOOLS, "required"), tokens, reasoning=tags, opened=True)
    assert opened.accepts(f"hm\n</think>\n\n{written}")
    assert not opened.begins("hm\n</think>\n\nHello")
    assert opened.begins("So, x\n" * 200)
    assert not opened.begins("So, x\n" * 201)
    assert opened.forced("So, x\n" * 200) == ""
    endless = "so and " * 5_000
    assert 200 * 160 <= opened.accepted(endless)[0] < 201 * 160
    for n in range(150, 170):  # a part may end anywhere in the marker
        assert opened.accepts(f"{'x' * n}</think>{written}")
    closed = grammar(form, Tools(TOOLS, "required"), tokens, reasoning=tags)
    assert closed.accepts(f"<think>hm</think>{written}")
    assert closed.accepts(written)
    free = grammar(form, Tools(TOOLS), tokens, reasoning=tags, opened=True)
    assert free.accepts(f"hm</think>{written}")
    assert free.accepts("hm</think>\n\nHello")


@every
@both
def test_text_with_a_schema(form: CallFormat, as_tokens: bool) -> None:
    tokens = special(form, as_tokens)
    text = '%json {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"], '
    text += '"additionalProperties": false, "x-guidance": {"whitespace_flexible": false, '
    text += '"item_separator": ", ", "key_separator": ": ", "coerce_one_of": true, "lenient": true}}'
    compiled = grammar(form, Tools(TOOLS), tokens, text=text)
    assert compiled.accepts(text_of(form, '{"answer": 1}', tokens))
    assert not compiled.accepts(text_of(form, "Hello", tokens))
    assert compiled.accepts(form.write(CALLS[:1], tokens))
    none = grammar(form, Tools(TOOLS, "none"), tokens, text=text)
    assert none.accepts(text_of(form, '{"answer": 1}', tokens))
    assert not none.accepts(text_of(form, "Hello", tokens))


def ends(form: CallFormat) -> list[str]:
    """Texts that a raw string of the format cannot contain."""
    return ["</parameter>", "</arg_value>", "｜DSML｜", '<|"|>', "<escape>", SHOWN, *form.tokens]


STRINGS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]) | st.just("\n"), max_size=20)
VALUES = st.fixed_dictionaries(
    {"city": STRINGS},
    optional={
        "days": st.integers(-(10**15), 10**15),
        "units": st.sampled_from(["C", "F"]),
        "when": st.lists(STRINGS, max_size=3),
        "near": st.fixed_dictionaries({"exact": st.booleans()}),
    },
)


@every
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(arguments=VALUES)
def test_any_arguments(form: CallFormat, arguments: dict[str, Any]) -> None:
    arguments = {k: arguments[k] for k in WEATHER.parameters["properties"] if k in arguments}
    shown = json.dumps(arguments, ensure_ascii=False)
    assume(not any(text in shown for text in ends(form)) and '<|"|>' not in arguments["city"])
    tools = Tools(TOOLS)
    written = form.write([("weather", arguments)])
    assert compiled_for(form).accepts(written), written
    assert read(form, tools, written) == ("", [("weather", arguments)])


_COMPILED: dict[str, Any] = {}


def compiled_for(form: CallFormat) -> Any:
    if form.name not in _COMPILED:
        _COMPILED[form.name] = grammar(form, Tools(TOOLS))
    return _COMPILED[form.name]


@every
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_the_model_writes(form: CallFormat, data: st.DataObject) -> None:
    """No answer makes a reader fail, and how it arrives changes nothing."""
    written = form.write(CALLS[:2] if several(form) else CALLS[:1], form.tokens)
    n = len(written)
    fragment = st.tuples(st.integers(0, n), st.integers(0, n)).map(lambda cut: written[min(cut) : max(cut)])
    noise = st.sampled_from(
        ["\n", " ", SHOWN, '"', "'", "{", "}", "[", "]", ")", ",", "\\", "text", *form.tokens]
    )
    answer = "".join(data.draw(st.lists(fragment | noise, max_size=8)))
    cut = sorted(data.draw(st.sets(st.integers(0, len(answer)), max_size=6)))
    parts = [answer[a:b] for a, b in itertools.pairwise([0, *cut, len(answer)])]
    tools = Tools(TOOLS, data.draw(st.sampled_from(["auto", "none"])))
    for tokens in (None, form.tokens, ()):
        assert pieces(form, tools, parts, tokens) == pieces(form, tools, [answer], tokens)
        read(form, tools, answer, tokens)


@every
def test_names_with_all_characters(form: CallFormat) -> None:
    name = "a.b:c/d@e-f_Gé"
    tools = Tools([Tool(name), Tool("a"), Tool("a.b")], "required")
    compiled = grammar(form, tools)
    for one in tools.tools:
        written = form.write([(one.name, {})])
        assert compiled.accepts(written), written
        assert read(form, tools, written) == ("", [(one.name, {})])


def test_names_of_formats() -> None:
    assert len({form.name for form in FORMATS}) == len(FORMATS)
    assert all(named(form.name) is form for form in FORMATS)
    with pytest.raises(UsageError, match="no call format 'other'") as error:
        named("other")
    assert "hermes" in error.value.hint
    assert choose("") is named("generic")
    assert choose("<tool_call> without a word of what may be called") is named("generic")


def test_the_tag_of_llama3() -> None:
    form = named("llama3")
    call, dotted = form.write([FULL]), '<|python_tag|>weather.call(city="x", days=2)'
    for tokens in (form.tokens, None):
        mark = SHOWN if tokens else ""
        assert read(form, Tools(TOOLS), f"{mark}<|python_tag|>{call}", tokens) == ("", [FULL])
        assert read(form, Tools(TOOLS), mark + dotted, tokens) == (
            "",
            [("weather", {"city": "x", "days": 2})],
        )
    compiled = grammar(form, Tools(TOOLS), form.tokens)
    assert compiled.accepts(f"{SHOWN}<|python_tag|>{call}")
    assert compiled.accepts(SHOWN + dotted)
    assert not compiled.begins(f"{SHOWN}<|python_tag|>print")


def test_reasoning_of_gemma4_and_gpt_oss() -> None:
    gemma, oss = named("gemma4"), named("gpt-oss")
    thought = f"{SHOWN}<|channel>thought\nhm\n{SHOWN}<channel|>"
    header = f"{SHOWN}<|channel|>analysis{SHOWN}<|message|>hm{SHOWN}<|end|>{SHOWN}<|start|>assistant"
    for form, before in ((gemma, thought), (oss, header)):
        written = form.write([FULL], form.tokens)
        compiled = grammar(form, Tools(TOOLS, "required"), form.tokens)
        assert compiled.accepts(before + written)
        assert compiled.accepts(written)
        answer = pieces(form, Tools(TOOLS), list(before + written), form.tokens)
        assert answer[0] == ThoughtPiece("hm")
        assert read(form, Tools(TOOLS), before + written, form.tokens) == ("", [FULL])
    text = header + header.replace("analysis", "commentary").replace("hm", "I look.")
    written = oss.write([FULL], oss.tokens)
    assert grammar(oss, Tools(TOOLS), oss.tokens).accepts(text + written)
    assert read(oss, Tools(TOOLS), text + written, oss.tokens) == ("I look.", [FULL])
    other = f" to=functions.now{SHOWN}<|channel|>commentary json{SHOWN}<|message|>{{}}"
    assert read(oss, Tools(TOOLS), other, oss.tokens) == ("", [("now", {})])


def test_the_tokens_around_the_text_of_command_r() -> None:
    form = named("command-r")
    answer = f"{SHOWN}<|START_RESPONSE|>Sunny.{SHOWN}<|END_RESPONSE|>"
    for choice in ("auto", "none"):
        assert grammar(form, Tools(TOOLS, choice), form.tokens).accepts(answer)
    assert read(form, Tools(TOOLS), answer, form.tokens) == ("Sunny.", [])


@pytest.mark.parametrize("text", ["True", "true", " true "])
def test_words_of_python_between_tags(text: str) -> None:
    form, tools = named("qwen-xml"), Tools([Tool("f", "", {"properties": {"a": {"type": "boolean"}}})])
    written = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert read(form, tools, written) == ("", [("f", {"a": True})])
    assert grammar(form, tools).accepts(written) is (text == text.strip())


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r'"a\n\"b\" \u00e9 \ud83d\ude00"', 'a\n"b" é 😀'),
        (r"'it\'s \x41 \q'", "it's A \\q"),
        ("[True, None, -1.5, 'x', {'a': [], \"b\": false}]", [True, None, -1.5, "x", {"a": [], "b": False}]),
        ("(1, 2)", [1, 2]),
        ("[1, 2, ]", [1, 2]),
        ("{}", {}),
    ],
)
def test_literals_of_python(written: str, value: Any) -> None:
    form, tools = named("pythonic"), Tools([Tool("f", "", {"type": "object"})])
    answer = f"[f(a={written})]"
    for parts in cuts(answer):
        assert pieces(form, tools, parts) == pieces(form, tools, [answer])
    assert read(form, tools, answer) == ("", [("f", {"a": value})])


QUOTED = '<tool_call>\n{"name": "weather", "arguments": {"city": "a}\\"b"}}\n</tool_call>'
EMPTY = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def hermes(*parts: str) -> list[Piece]:
    return pieces(named("hermes"), Tools(TOOLS), parts)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", []),
        ("  \n", []),
        ("1 < 2 <tool", [TextPiece("1 < 2 <tool")]),
        (
            f"So:\n\n{QUOTED}\n{EMPTY}",
            [
                TextPiece("So:"),
                OpenPiece("weather"),
                ArgumentsPiece('{"city": "a}\\"b"}'),
                ClosePiece(),
                OpenPiece("now"),
                ArgumentsPiece("{}"),
                ClosePiece(),
            ],
        ),
        ('\n<tool_call>\n{"name": "now", "arguments": {', [OpenPiece("now"), ArgumentsPiece("{")]),
        ("<tool_call>\nx</tool_call> y", [TextPiece("<tool_call>\nx</tool_call> y")]),
        (EMPTY.replace("now", "other"), [TextPiece(EMPTY.replace("now", "other"))]),
    ],
)
def test_answers_in_the_form_of_hermes(answer: str, expected: list[Piece]) -> None:
    assert hermes(answer) == hermes(*answer) == expected


@given(
    st.lists(st.sampled_from([QUOTED, EMPTY, "\n", " ", "<tool_", "call>", "</tool_call>", '{"', "text"])),
    st.data(),
)
def test_however_an_answer_is_split(parts: list[str], data: st.DataObject) -> None:
    answer = "".join(parts)
    at = sorted(data.draw(st.sets(st.integers(0, len(answer)))))
    split = [answer[a:b] for a, b in zip([0, *at], [*at, len(answer)], strict=True)]
    assert hermes(*split) == hermes(answer)
