"""JSON schemas, grammars and chat templates: what users and models write, read by other people's parsers."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from scripts.fuzz import mutate
from specllama.errors import TemplateError, UsageError

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
TEMPLATE_TOKENS = (
    b"{{", b"}}", b"{%", b"%}", b"{#", b"| int(0, 16)", b"| join", b"| tojson", b"* 99999", b"** 999", b"~",
    b".__class__", b".__init__.__globals__", b"['__mro__']", b"| attr('x')", b"| sum", b"| sort", b"| list",
    b"//", b"range(99999)", b"'f' * 900000", b".format(", b"'{:>99999}'", b"| replace('', 'xx')", b"| pprint",
    b"{% for x in messages recursive %}", b"{{ loop(messages) }}", b"{% endfor %}", b"self", b"cycler(1)",
    b"| batch(9)", b"| wordwrap(1)", b"dict(a=1)", b"joiner()", b"| from_json", b"| urlize", b"1e308",
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
    """Chat templates: compiled and rendered in the sandbox."""

    name, seconds, n_bytes, batch = "templates", 6.0, 900 << 20, 400

    def set_up(self) -> None:
        from specllama.text import chat_template  # noqa: F401

    def make(self, rng: random.Random) -> bytes:
        text = "".join(rng.sample(TEMPLATES, rng.choice((1, 1, 2)))).encode()
        if rng.random() < 0.3:
            pieces = [b" ".join(rng.choices(TEMPLATE_TOKENS, k=rng.randrange(1, 5))) for _ in range(2)]
            text += b"{{ " + pieces[0] + b" }}{% set x = " + pieces[1] + b" %}"
        return mutate.mutated(rng, text, TEMPLATE_TOKENS)

    def run(self, data: bytes) -> str:
        from specllama.text.chat_template import ChatTemplate

        source = data.decode("utf-8", "replace")
        try:
            template = ChatTemplate(source, ["<|im_start|>", "<|im_end|>"], "<s>", "</s>")
        except TemplateError as error:
            assert len(error.message) < 1000
            return "refused"
        try:
            parts = template.render(MESSAGES, tools=[{"name": "f", "parameters": {"x": [1, 2]}}])
        except TemplateError as error:
            return "late" if "ran for" in error.message else "failed"
        except UsageError:
            return "refused"
        assert all(isinstance(part.text, str) for part in parts)
        return "rendered"

    def close(self) -> None:
        pass
