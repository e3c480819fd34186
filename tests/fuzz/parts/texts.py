"""JSON schemas, grammars and chat templates: what users and models write, read by other people's parsers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from specllama.errors import TemplateError, UsageError
from tests.fuzz import mutate

if TYPE_CHECKING:
    from specllama.text.grammar import Grammars

SCHEMAS: tuple[Any, ...] = (
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
    },
    {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "minItems": 1, "maxItems": 3},
    {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"anyOf": [{"const": "a"}, {"enum": [1, None, "b"]}, {"type": "number", "multipleOf": 0.5}]},
    {"type": "string", "format": "date-time", "minLength": 1, "maxLength": 40},
    {"allOf": [{"type": "object", "additionalProperties": False}, {"properties": {"x": {"not": {}}}}]},
)
GRAMMARS = (
    'root ::= item+\nitem ::= "- " [a-z]{1,5} "\\n" | "(" root ")"\n',
    'root ::= ("a" | "b")* "c"? [^x-z\\n]\n',
    'start: /[a-z]+/ (" " word)*\nword: "x" | "y" start\n',
    "start: a{1,3}\na: /(?i)[0-9]{2,4}/ | <[1-3]>\n",
    'start: @obj\nobj: %json {"type": "object"}\n',
)
GRAMMAR_TOKENS = (
    b"::=", b"root", b"start: ", b"|", b"(", b")", b"[^a-z]", b"{1,100000}", b"*", b"+", b"?", b'"', b"/",
    b"%json", b"%regex", b"\\x", b"~", b"<[0-9]>", b"(?=a)", b".*", b"(a*)*", b"&",
)  # fmt: skip
TEMPLATES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}",
    "{% macro a(x, n=3) %}{{ x * n }}{% endmacro %}{{ a('b') }}{{ messages[0]['content'][1:-1] | upper }}",
    "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ tools | tojson(indent=2) }}{{ '%s' % bos_token }}",
    "{% if messages[0].role == 'x' %}{{ raise_exception('no') }}{% endif %}{{ strftime_now('%Y') }}",
)
ATOMS = (
    "messages", "tools", "bos_token", "messages[1].content", "messages[0]", "'f'", "'ab' * 9999", "7", "-1",
    "1e308", "range(9)", "range(99999)", "{'a': [1, 2]}", "[]", "(1, 'x')", "none", "undefined_name",
    "self", "dict(a=1)", "cycler(1, 2)", "joiner()", "namespace(a=1)", "9999999999", "'{:>99999}'",
    "'%9999d'", "loop", "true",
)  # fmt: skip
FILTERS = (
    "int(0, 16)", "int", "float", "join", "tojson(indent=9999)", "tojson", "sum", "sort", "list",
    "attr('x')", "upper", "replace('', 'xx')", "replace('x', 'xxxxxxxx')", "pprint", "batch(9)", "slice(3)",
    "wordwrap(1)", "center(99999)", "from_json", "urlize", "groupby('role')", "map('upper')",
    "map(attribute='role')", "select", "unique", "reverse", "dictsort", "items", "first", "last", "length",
    "trim", "indent(9999)", "xmlattr", "string", "format(1)", "min", "truncate(5)", "striptags", "title",
    "capitalize", "default('x')", "random", "round(300)", "filesizeformat",
)  # fmt: skip
METHODS = (
    ".__class__", ".__init__.__globals__", "['__mro__']", ".format(1)", ".format(a=self)", ".split()",
    ".splitlines()", ".append(1)", ".pop()", ".update(a=1)", ".join('ab')", ".encode()", ".translate({})",
    "[::-1]", "[:99999999]", ".expandtabs(99999)", ".zfill(99999)", ".to_bytes(99999)", "()", ".items()",
    ".a", "['a']", ".mro()",
)  # fmt: skip
OPERATORS = (
    "+", "-", "*", "/", "//", "**", "%", "~", "<", "==", "in", "and", "or", "is defined and", "is eq",
)  # fmt: skip
TEMPLATE_TOKENS = (
    b"{{", b"}}", b"{%", b"%}", b"{#", b"{% for x in messages recursive %}", b"{{ loop(messages) }}",
    b"{% endfor %}", b"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", b"{% include 'x' %}",
    b"{% import 'x' as y %}", b"{% raw %}", b"{% call f() %}{% endcall %}", b"{% filter upper %}",
    b"{% set x = x ~ x %}", b"{% break %}", b"-%}", b"{%-",
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "Hello <b>you</b>"}, {"role": "assistant", "content": "x" * 3000}]


class Grammar:
    """Schemas and grammars: compiled, and followed for some tokens."""

    name, seconds, n_bytes, batch = "grammars", 5.0, 1 << 30, 400

    def __init__(self) -> None:
        self._grammars: Grammars | None = None

    def set_up(self) -> None:
        from specllama.config.load import ModelSettings
        from specllama.data import EMBEDDED_TARGET
        from specllama.llama.model import LlamaModel
        from specllama.text.grammar import Grammars

        model = LlamaModel(ModelSettings(path=str(EMBEDDED_TARGET)), vocab_only=True)
        self._grammars = Grammars(model)
        self._grammars.mask(json_schema="true")

    def make(self, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            schema = rng.choice(SCHEMAS)
            for _ in range(rng.choice((1, 1, 2, 4))):
                schema = mutate.changed(rng, schema)
            return b"s" + json.dumps(schema).encode()
        text = rng.choice(GRAMMARS).encode()
        return b"g" + mutate.mutated(rng, text, GRAMMAR_TOKENS)

    def run(self, data: bytes) -> str:
        from specllama.core.interfaces import MaskError

        assert self._grammars is not None
        text = data[1:].decode("utf-8", "surrogateescape")
        kind = "json_schema" if data[:1] == b"s" else "grammar"
        try:
            mask = self._grammars.mask(**{kind: text})
        except UsageError as error:
            assert len(error.message) < 1000
            return "refused"
        assert mask is not None
        rng = random.Random(data)
        try:
            for _ in range(12):
                ids = mask.allowed().nonzero()[0]
                if not len(ids):
                    return "ended"
                mask.forced()
                token = int(rng.choice(ids))
                if token in mask._end_ids:
                    return "ended"
                assert mask.allows(token)
                mask.accept(token)
        except MaskError:
            return "too complex"
        return "followed"

    def close(self) -> None:
        pass


class Templates:
    """Chat templates: compiled and rendered in the process that is limited."""

    name, seconds, n_bytes, batch = "templates", 6.0, 900 << 20, 400

    def set_up(self) -> None:
        from specllama.text import template_process  # noqa: F401

    def make(self, rng: random.Random) -> bytes:
        text = rng.choice(("", *TEMPLATES))
        for _ in range(rng.choice((0, 1, 2))):
            shape = rng.choice(("{{ E }}", "{% set x = E %}{{ x }}", "{% for x in E %}{{ x }}{% endfor %}"))
            text += shape.replace("E", expression(rng, rng.choice((1, 2, 4))))
        data = text.encode()
        return mutate.mutated(rng, data, TEMPLATE_TOKENS) if not data or rng.random() < 0.3 else data

    def run(self, data: bytes) -> str:
        from specllama.text.template_process import IsolatedTemplate

        source = data.decode("utf-8", "replace")
        try:
            template = IsolatedTemplate(source, ["<|im_start|>", "<|im_end|>"], "<s>", "</s>")
        except TemplateError as error:
            assert len(error.message) < 1000
            return "refused"
        try:
            parts = template.render(MESSAGES, tools=[{"name": "f", "parameters": {"x": [1, 2]}}])
        except TemplateError as error:
            return "late" if "ran for" in error.message else "failed"
        except UsageError:
            return "refused"
        finally:
            template.close()
        assert all(isinstance(part.text, str) for part in parts)
        return "rendered"

    def close(self) -> None:
        pass


def expression(rng: random.Random, depth: int) -> str:
    """An expression of a template."""
    found = rng.choice(ATOMS) if depth == 0 else expression(rng, depth - 1)
    kind = rng.randrange(4)
    if kind == 0:
        return f"{found} | {rng.choice(FILTERS)}"
    if kind == 1:
        return f"({found}){rng.choice(METHODS)}"
    if kind == 2:
        other = rng.choice(ATOMS) if rng.random() < 0.5 else found
        return f"({found}) {rng.choice(OPERATORS)} ({other})"
    return found
