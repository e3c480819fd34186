"""The parser of GBNF and what is made of a grammar, without a model: a token is a byte."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from specllama.errors import UsageError
from specllama.text.gbnf.lark import gbnf_to_lark, split_lexemes
from specllama.text.gbnf.parser import Lexeme, descendants, parse

N_VOCAB = 4096


def lark(text: str) -> str:
    return gbnf_to_lark(text, N_VOCAB, {2}, {"<think>": 1000, "</think>": 1001}.get)


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), LLMatcher.grammar_from_lark(lark(grammar)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


# The grammars of llama.cpp's tests/test-grammar-parser.cpp: (grammar, texts of it, other texts)
READ = [
    ('root ::= "a"{0,5000}', ["", "a", "a" * 6000], ["b", "ab"]),
    ('root ::= "a"{3,5000}', ["aaa", "a" * 6000], ["aa", "aaab"]),
    ('root  ::= "a"', ["a"], ["", "aa"]),
    ('root  ::= "a" | [bdx-z] | [^1-3]', ["a", "b", "d", "y", "4", "é"], ["1", "2", "3", "ab"]),
    ('root  ::= a+\na     ::= "a"', ["a", "aaa"], ["", "b"]),
    ('root  ::= "a"+', ["a", "aaa"], ["", "ab"]),
    ('root  ::= a?\na     ::= "a"', ["", "a"], ["aa"]),
    ('root  ::= "a"?', ["", "a"], ["aa"]),
    ('root  ::= a*\na     ::= "a"', ["", "a", "aaa"], ["b"]),
    ('root  ::= "a"*', ["", "a", "aaa"], ["ba"]),
    ('root  ::= "a"{2}', ["aa"], ["a", "aaa"]),
    ('root  ::= "a"{2,}', ["aa", "a" * 50], ["a"]),
    ('root  ::= "a"{ 4}', ["aaaa"], ["aaa", "aaaaa"]),
    ('root  ::= "a"{2,4}', ["aa", "aaa", "aaaa"], ["a", "aaaaa"]),
    (
        'root  ::= (expr "=" term "\\n")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= [0-9]+',
        ["1+2=3\n", "1=1\n22-3*4/5=06\n"],
        ["1+=2\n", "1=1", "=1\n"],
    ),
    (
        'root  ::= (expr "=" ws term "\\n")+\nexpr  ::= term ([-+*/] term)*\n'
        'term  ::= ident | num | "(" ws expr ")" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum   ::= [0-9]+ ws\n'
        "ws    ::= [ \\t\\n]*",
        ["a_1 +(b*2) = 3 \n", "x=x\n\n\n\n", "x=(\n1)\n"],
        ["A=1\n", "a=1", "a=1+2\n"],
    ),
]
REFUSED = [
    'root ::= "a"{,}"',
    "root ::= (((((([^x]*){0,99}){0,99}){0,99}){0,99}){0,99}){0,99}",
    'root ::= "a"{,10}"',
    'root ::= "a"{5000}',
    'root ::= "a"{5000,}',
    'root ::= "a"{5000,6000}',
]
# (grammar, texts of it, other texts): the cases of shared reports, and places where parsers err
MORE = [
    (r'root ::= "caf\u00e9ab"', ["caféab"], ["caf\ue9ab"]),
    (r'root ::= "\u0041bc"', ["Abc"], ["䆼"]),
    (r'root ::= "\u00e9" "\xe9" "\x41"', ["ééA"], []),
    (r'root ::= "\U0001F600"', ["😀"], []),
    (r"root ::= [\u00e0-\u00ff]+", ["àéÿ"], ["a", ""]),
    ('root ::= start\nstart ::= "a"', ["a"], []),
    ('root ::= T0 r1\nT0 ::= "a"\nr1 ::= "b"', ["ab"], []),
    (r'root ::= [\]\[\-\\"] "\"\\\t\r\n"', [']"\\\t\r\n', '-"\\\t\r\n'], []),
    ("root ::= [a-] [-a] [a-z-9] [--/]", ["a-9.", "--m/"], ["b-9."]),
    ("root ::= [^]", [""], ["a"]),
    ('root ::= "" [] "a"{0} "b"', ["b"], ["ab"]),
    ("root ::= .{2}", ["\n😀", "é\0"[:1] + "x"], ["a"]),
    ('root ::= # comment\n  "a" # "b"\n# another\r\n', ["a"], ["ab"]),
    ('root ::= ( "a"\n  | "b"\n) |\n "c"\r\nother ::= root', ["a", "b", "c"], []),
    ('root ::= 5 -\n5 ::= "a"\n- ::= "b"', ["ab"], []),
    ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
    ('root ::= "ab"{2} ("c" "d")+*', ["abab", "ababcdcd"], ["abb"]),
    # where the longest match is too long
    ('root ::= "ab" "d" | "a" "bc"', ["abd", "abc"], ["ab"]),
    ('root ::= [a-z]* "a"', ["a", "zza", "aaaa"], ["", "ab"]),
    ('root ::= ("(" root ")")? [a-z]* "b" [a-z]?', ["(ab)bb", "bx", "(b)b"], ["(a)b"]),
    ('root ::= x "y" root | x\nx ::= [xy]+', ["xyyx", "x", "xyy"], [""]),
    ('root ::= word (" " word)* root?\nword ::= "é" [a-z]* | "è" [è]*', ["éa èè éè", "èé"], ["é  é", "ea"]),
]


@pytest.mark.parametrize(("grammar", "texts", "others"), [*READ, *MORE])
def test_a_grammar_has_the_texts_that_llama_cpp_reads_in_it(grammar: str, texts, others) -> None:
    assert [text for text in texts if not accepts(grammar, text)] == []
    assert [text for text in others if accepts(grammar, text)] == []


@pytest.mark.parametrize(
    ("grammar", "why"),
    [
        *((grammar, "cannot be used") for grammar in REFUSED),
        ('root ::= "a\n', "the end of a literal"),
        ('root ::= "\\q"', "escapes"),
        ('root ::= "\\u00g0"', r"4 hexadecimal digits after \\u \(line 1, column 12\)"),
        ('root ::= ("a"\n', "closing parenthesis"),
        ('a_b ::= "a"', "letters, digits and -"),
        ('root ::= "a" | b', "no rule 'b'"),
        ('root ::= "a" | ' + 2000 * "b", "no rule 'bb"),
        (f'root ::= {2000 * "b"} | "a"\n{2000 * "b"} ::= {2000 * "b"}', "'bb.* begins with itself"),
        ('rot ::= "a"', "no rule 'root'"),
        ('root ::= "a"\nx := "b"', r"::= \(line 2, column 3\)"),
        ("root ::= *", "something to repeat"),
        ('root ::= ""*', "something to repeat"),
        ('root ::= "a"{3,2}', "at least 3 and at most 2"),
        ('root ::= root "a" | "b"', "'root' begins with itself"),
        ('root ::= x "a"\nx ::= "y"? root', "begins with itself"),
        ('root ::= ws*\nws ::= " " |', "repeats what may be empty"),
        ('root ::= "a"**', "repeats what may be empty"),
        ('root ::= "b" ("a"?*){0}', "repeats what may be empty"),
        ('root ::= "b" x{0} "c"*', "no rule 'x'"),
        ("root ::= <thunk>", "<thunk> is not one token"),
        ("root ::= !", "expected <"),
        ("root ::= <[12>", "expected ]>"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "deeper than 100 levels"),
        ('root ::= "a" "\\ud83d\\ude00"', "no text satisfies it"),
        ("root ::= <[2]> | <[4096]>", "no text satisfies it"),
        ('root ::= ("z"{0,99}){0,99}', "more than 2000 rules"),
    ],
)  # fmt: skip
def test_other_grammars_are_refused_with_the_place(grammar: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        lark(grammar)
    assert caught.value.message.startswith("the grammar cannot be used: ")
    assert len(caught.value.message) < 200


def test_tokens_are_named_by_id_or_text() -> None:
    written = lark("root ::= <think> x </think> <[5]> !<[5000]>\nx ::= !</think>*")
    assert "<[1000]>" in written
    assert "<[^1001]>" in written
    assert "<[5]>" in written
    assert "<[0-4095]>" in written


def test_forty_rules_do_not_make_a_text_of_a_terabyte() -> None:
    doubled = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(40)) + "r40 ::= "
    with pytest.raises(UsageError, match="the shortest text of rule 'r"):
        lark(doubled + '"a"')
    assert accepts(doubled + '"a"?', "aaa")


@pytest.mark.parametrize(
    ("grammar", "regexes"),
    [
        ('root ::= "{" ws [a-z]+ ws root? "}"\nws ::= [ \\t]*', {r"\x{7b}", "(?:[a-z])+", r"\x{7d}"}),
        ('root ::= word " " root | word\nword ::= [a-z]+', {"(?:[a-z])+", r"\x{20}"}),
        ("root ::= word [a-f] root | word\nword ::= [a-z]+", {"[a-z]", "[a-f]"}),
        ('root ::= "ab" "d" root | "a" "bc"', {"ab", "d", "abc"}),
        ('root ::= "ab" "d" root | "a" "bc" root | "c" x\nx ::= "a"', {"a", "b", "d", "bc", "ca"}),
    ],
)
def test_only_what_would_be_read_too_far_is_cut_into_characters(grammar: str, regexes: set[str]) -> None:
    """Lexemes of several characters are read by automata, some thirty times as fast."""
    rules = split_lexemes(parse(grammar, lambda _: None), characters_only=False)
    nodes = [node for body in rules.values() for node in descendants(body)]
    lexemes = {node.regex for node in nodes if isinstance(node, Lexeme)}
    assert lexemes - {r"(?:[\x{9}\x{20}])*"} == regexes
