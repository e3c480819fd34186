"""The tokens of a model's vocabulary for llguidance. Knows no grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from llguidance import LLTokenizer


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
