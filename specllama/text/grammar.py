"""Masks over a model's tokens for a JSON schema or a grammar, with llguidance.

A grammar that cannot be used raises UsageError when it is compiled, MaskError if it turns out too
complex during generation.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from specllama.core.interfaces import MaskError
from specllama.errors import ResourceError, UsageError
from specllama.text.json_schema import JSON_STYLE, NOTHING, in_words, parsed

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class GrammarVocabulary(Protocol):
    """The vocabulary of a model loaded by llama.cpp. end_ids: the tokens that end a generation."""

    @property
    def vocab(self) -> Any:
        """Pointer to the llama_vocab."""

    @property
    def n_vocab(self) -> int: ...

    @property
    def end_ids(self) -> frozenset[int]: ...

    @property
    def eos_id(self) -> int:
        """-1 without one."""

    @property
    def tokenize_address(self) -> int:
        """Of llama_tokenize."""

    def piece(self, token: int) -> bytes:
        """Empty for a control token."""

    def token_text(self, token: int) -> str: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...


def grammar_tokenizer(model: GrammarVocabulary) -> LLTokenizer:
    """llguidance's tokenizer. Control tokens alone are no text; llguidance's own function also leaves out all
    other added tokens in angle brackets, such as Gemma's for HTML and Qwen 3's <tool_call>.
    """
    from llguidance import LLTokenizer

    pieces = [
        model.piece(token) or (b"\xff" + model.token_text(token).encode()) for token in range(model.n_vocab)
    ]
    make: Any = LLTokenizer
    tokenizer: LLTokenizer = make.from_llamacpp(
        tokens=[b"" if piece == b"\xff" else piece for piece in pieces],
        vocab_ptr=model.vocab,
        tokenize_fptr=model.tokenize_address,
        eos_token=sorted(model.end_ids) or [max(0, model.eos_id)],
        slices=None,
    )
    return tokenizer


# Runs work of libraries that recurse once per character or rule on a stack that is large enough for it.


_Result = TypeVar("_Result")
_STACK = 192 * 1024 * 1024  # bytes; used only as far as needed
_START = threading.Lock()  # the stack size of new threads is a setting of the whole process


def with_large_stack(work: Callable[[], _Result]) -> _Result:
    """The result of `work` in a thread with a large stack. Raises what it raises, ResourceError."""
    done = Future[_Result]()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="specllama-stack", daemon=True)
    with _START:
        before = threading.stack_size(_STACK)
        try:
            thread.start()
        except RuntimeError:
            raise ResourceError(
                f"there is no memory for a stack of {_STACK >> 20} MB, which this text or grammar needs",
                "raise the limit on virtual memory (ulimit -v), or break it up",
            ) from None
        finally:
            threading.stack_size(before)
    thread.join()
    return done.result()


MAX_BYTES = 64 * 1024  # of the text of a schema or grammar
_KEPT = 16  # compiled grammars
_MAX_ALTERNATIVES = 8_000  # at one position, such as the keys of a large object; llguidance's default: 2,000
_MAX_ITEMS = 500_000  # of the Earley parser in one step, some 25 ms; llguidance's default: 50,000
_MAX_SYMBOLS = 10_000  # of a compiled grammar; llguidance's default, 500,000, takes seconds
_MAX_TOOL_SYMBOLS = 60_000  # of the grammar of tool calls, which calls/schema.py bounds
_SCHEMA, _GRAMMAR, _TOOLS = "JSON schema", "grammar", "grammar of the tools"
_GBNF_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_LARK_START = re.compile(r"^[ \t]*start[ \t]*:", re.MULTILINE)

_Key: TypeAlias = tuple[str, str, str]  # scope, kind and text of a compiled grammar


class Grammars:
    """Compiles grammars for a model, in any thread, without holding up another one that does.

    The first mask builds llguidance's tokenizer: 0.5 s for 128k tokens.
    """

    def __init__(self, model: GrammarVocabulary) -> None:
        self._model = model
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[_Key, LLMatcher] = OrderedDict()
        self._lock, self._tokenizer_lock = threading.Lock(), threading.Lock()

    def mask(
        self,
        *,
        json_schema: str | None = None,
        grammar: str | None = None,
        tools: str | None = None,
        scope: str = "",
    ) -> GrammarMask | None:
        """A mask at the start of a schema (JSON text), a grammar (GBNF or Lark) or the Lark grammar of tool
        calls, which contains a schema that is given with it; None if none is given. What was compiled before
        is reused within its scope only.

        Raises UsageError if it cannot be used.
        """
        if tools is not None and json_schema is not None:
            self.mask(json_schema=json_schema, scope=scope)  # an error of the schema names the schema
        given = ((_TOOLS, tools), (_SCHEMA, json_schema), (_GRAMMAR, grammar))
        what, text = next(((what, text) for what, text in given if text is not None), ("", ""))
        if not what:
            return None
        key = scope, what, text
        with self._lock:
            matcher = self._compiled.get(key)
        if matcher is None:
            with _panics_as_refusals(what):
                matcher = with_large_stack(lambda: self._compile(what, text))
        with self._lock:
            self._compiled[key] = matcher
            self._compiled.move_to_end(key)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
            copy = matcher.deep_copy()
        return GrammarMask(copy, self._model.n_vocab, self._model.end_ids)

    def _compile(self, what: str, text: str) -> LLMatcher:
        """On a large stack: llguidance recurses once per rule of a chain of rules."""
        from llguidance import LLMatcher, LLParserLimits

        source = self._source(what, text)
        limits = LLParserLimits(
            max_items_in_row=_MAX_ALTERNATIVES,
            max_grammar_size=_MAX_TOOL_SYMBOLS if what == _TOOLS else _MAX_SYMBOLS,
            step_max_items=_MAX_ITEMS,
        )
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = grammar_tokenizer(self._model)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=limits)
        if matcher.is_error():
            raise _refused(what, matcher.get_error(), text)
        probe = matcher.deep_copy()  # finds errors at the first tokens before anything is decoded
        for _ in range(2):
            if not probe.is_stopped() and not any(probe.compute_bitmask()) and not probe.is_accepting():
                raise _refused(what, probe.get_error() or NOTHING, text)
            probe.consume_tokens(probe.compute_ff_tokens())
            if probe.is_error():
                raise _refused(what, probe.get_error(), text)
        return matcher

    def _source(self, what: str, text: str) -> str:
        """As llguidance reads it."""
        from llguidance import LLMatcher

        if what == _SCHEMA:
            return _from_schema(text)
        if what == _GRAMMAR:
            _check_size(text, what)
            if _is_gbnf(text):
                from specllama.text.gbnf.lark import gbnf_to_lark

                model = self._model
                text = gbnf_to_lark(text, model.n_vocab, model.end_ids, self._token_id)
        return LLMatcher.grammar_from_lark(text)

    def _token_id(self, text: str) -> int | None:
        """The token that this text is as a whole, as llama.cpp looks it up for a grammar."""
        ids = self._model.tokenize(text, False, True)
        return ids[0] if len(ids) == 1 else None


class GrammarMask:
    """A sequence's position in a grammar; a core.interfaces.Mask. end_ids: legal if the text may end here.

    Tokens `ahead` are tried on a copy of the matcher, the scout: a matcher that has failed cannot be rolled
    back, and a failure on drafted tokens must not end a text that can continue without them.
    """

    def __init__(self, matcher: LLMatcher, n_vocab: int, end_ids: Collection[int]) -> None:
        self._matcher, self._n_vocab = matcher, n_vocab
        self._end_ids = frozenset(end_ids)
        self._ends = np.array(sorted(self._end_ids), np.int64)
        self._scout: LLMatcher | None = None
        self._lead: list[int] = []  # tokens that the scout has consumed beyond the accepted ones
        self._lag: list[int] = []  # accepted tokens that the scout has not consumed yet

    def allows(self, token: int, ahead: Sequence[int] = ()) -> bool:
        matcher = self._after(ahead) if ahead else self._checked()
        if matcher is None:
            return False
        if token in self._end_ids:
            return matcher.is_accepting()
        n = matcher.validate_tokens([token])
        return n == 1 and not matcher.is_error()

    def allowed(self, ahead: Sequence[int] = ()) -> NDArray[np.bool_]:
        allowed = np.zeros(self._n_vocab, np.bool_)
        matcher = self._after(ahead) if ahead else self._checked()
        if matcher is not None:
            if not matcher.is_stopped():
                bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
                allowed[:] = np.unpackbits(bits, count=self._n_vocab, bitorder="little")
            allowed[self._ends] = matcher.is_accepting()
        if not ahead:
            self._checked()
        return allowed

    def legal(self, tokens: Sequence[int]) -> int:
        scout = self._after(())
        end = next((i for i, t in enumerate(tokens) if t in self._end_ids), len(tokens))
        if scout is None or not tokens:
            return 0
        n = scout.validate_tokens(list(tokens[:end])) if end else 0
        if n == end < len(tokens):
            last = self._after(tokens[:end])
            n += last is not None and last.is_accepting()
        return n

    def forced(self, ahead: Sequence[int] = ()) -> list[int]:
        scout = self._after(ahead)
        if scout is None or scout.is_stopped():
            return []
        return [t for t in scout.compute_ff_tokens() if t not in self._end_ids]

    def accept(self, token: int) -> None:
        if self._checked().try_consume_tokens([token]) != 1:
            self._checked()
            raise MaskError(f"token {token} is not legal here")
        if self._lead[:1] == [token]:
            del self._lead[0]
        else:
            self._roll_back(0)
            self._lag.append(token)

    def _checked(self) -> LLMatcher:
        """The matcher after the accepted tokens. Raises MaskError if it has failed."""
        if self._matcher.is_error():
            raise MaskError(in_words(self._matcher.get_error()))
        return self._matcher

    def _after(self, ahead: Sequence[int]) -> LLMatcher | None:
        """The scout after `ahead`; None if `ahead` is not legal."""
        if self._scout is None or self._scout.is_error():
            self._scout, self._lead, self._lag = self._checked().deep_copy(), [], []
        elif self._lag:
            self._scout.consume_tokens(self._lag)
            self._lag = []
        common = 0
        while common < min(len(ahead), len(self._lead)) and ahead[common] == self._lead[common]:
            common += 1
        self._roll_back(common)
        if rest := list(ahead[common:]):
            self._lead += rest[: self._scout.try_consume_tokens(rest)]
        return self._scout if len(self._lead) == len(ahead) and not self._scout.is_error() else None

    def _roll_back(self, n: int) -> None:
        """Roll the scout back to n tokens beyond the accepted ones."""
        if self._scout is not None and n < len(self._lead):
            self._scout.rollback(len(self._lead) - n)
            del self._lead[n:]


def check(json_schema: str | None = None, grammar: str | None = None) -> None:
    """Raise UsageError for a schema or a grammar that no model's tokens could make usable. The rest is found
    with a model's tokens: what its own tokens are named, and whether there is a text at all.
    """
    from llguidance import LLMatcher

    what, problem = _GRAMMAR if json_schema is None else _SCHEMA, ""
    with _panics_as_refusals(what):
        if json_schema is not None:
            problem = LLMatcher.validate_grammar(_from_schema(json_schema))
        elif grammar is not None:
            _check_size(grammar, what)
            if _is_gbnf(grammar):
                from specllama.text.gbnf.parser import parse

                parse(grammar, lambda _: 0)
            else:
                problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar))
    if problem:
        raise _refused(what, problem)


@contextlib.contextmanager
def _panics_as_refusals(what: str) -> Iterator[None]:
    """Raises UsageError where llguidance panics."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no Exception, and without another name
            raise
        raise _refused(what, "llguidance fails on it") from None


def _from_schema(text: str) -> str:
    from llguidance import LLMatcher

    _check_size(text, _SCHEMA)
    try:
        return LLMatcher.grammar_from_json_schema(parsed(text), defaults=JSON_STYLE)
    except ValueError as error:
        raise _refused(_SCHEMA, str(error)) from None


def _is_gbnf(text: str) -> bool:
    """Whether rules are defined with `::=`; any other text is Lark."""
    return bool(_GBNF_RULE.search(text)) or ("::=" in text and not _LARK_START.search(text))


def _check_size(text: str, what: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the {what} is not valid UTF-8") from None
    if size > MAX_BYTES:
        raise UsageError(f"the {what} has {size} bytes, at most {MAX_BYTES} are allowed")
    if "\0" in text:
        raise UsageError(f"the {what} contains a NUL character")


def _refused(what: str, error: str, source: str = "") -> UsageError:
    problem = in_words(error)
    if problem == NOTHING and '"$ref"' in source:
        problem += ": a $ref leads to nothing but itself"
    return UsageError(f"the {what} cannot be used: {problem}")
