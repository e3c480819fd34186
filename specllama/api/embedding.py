"""The vectors and scores of LLM.embed and LLM.score: plain values under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specllama.api.prompts import PromptSource
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.errors import UsageError


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """A vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """Numbers of the vector."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """The vector of a text. prompt, prompt_token_ids: the text in the form in which it was given, the other
    one None. n_prompt: its tokens.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...] | None
    outputs: EmbeddingOutput
    n_prompt: int
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    """How well a document answers a query; higher is better, of no fixed range."""

    score: float


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """The score of a document. n_prompt: tokens of query and document."""

    request_id: str
    outputs: ScoringOutput
    n_prompt: int
    finished: bool = True


def embed(
    client: EngineClient,
    numbers: Iterator[int],
    texts: Sequence[PromptSource],
    dimensions: int | None,
    truncate: bool,
    normalize: bool,
) -> list[EmbeddingRequestOutput]:
    """See LLM.embed. numbers: of requests. Raises UsageError, ContextLengthError, EngineError."""
    if not texts:
        return []
    if any(one.images for one in texts):
        raise UsageError("an embedding model reads text only, and a prompt has images")
    given = [list(one.ids) if one.ids is not None else one.text or "" for one in texts]
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise UsageError(f"dimensions must be a whole number from 1, not {dimensions!r}")
    order = protocol.Embed(
        client.next_id(), given, norm=2 if normalize else -1, n_values=dimensions or 0, truncate=truncate
    )
    made = client.embed(order)
    return [
        EmbeddingRequestOutput(
            str(next(numbers)), text.text, text.ids, EmbeddingOutput(one.numbers()[0]), one.n_tokens
        )
        for text, one in zip(texts, made, strict=True)
    ]


def score(
    client: EngineClient, numbers: Iterator[int], query: str, documents: str | Sequence[str], truncate: bool
) -> list[ScoringRequestOutput]:
    """See LLM.score. Raises UsageError, ContextLengthError, EngineError."""
    given = [documents] if isinstance(documents, str) else list(documents)
    if not isinstance(query, str) or not all(isinstance(one, str) for one in given):
        raise UsageError("score takes a query and documents, all texts")
    if not given:
        return []
    made = client.embed(protocol.Embed(client.next_id(), [*given], query, truncate=truncate))
    return [
        ScoringRequestOutput(str(next(numbers)), ScoringOutput(one.numbers()[0][0]), one.n_tokens)
        for one in made
    ]
