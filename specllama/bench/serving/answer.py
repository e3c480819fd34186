"""One streamed answer: the times of its text and the counters of its server. Knows no HTTP and no clock."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from specllama.errors import SpecllamaError
from specllama.json_types import JsonObject

ONE_PIECE = 0.001  # seconds within which chunks count as one piece


class BrokenStreamError(Exception):
    """The stream is malformed, reports an error or ends too early; the message says which."""


@dataclass(slots=True)
class ServedPiece:
    """Text that arrived at once. at: seconds since the request; n: its chunks of the stream."""

    at: float
    n: int = 1


@dataclass(slots=True)
class ServedAnswer:
    """The outcome of a request.

    number: of the request in its cell. seconds: to its end, waits after a 429 included. refused: number of
    429s. n_predict, n_prompt, n_cached, n_drafted, n_accept: tokens by the server's count, decode_seconds:
    from the first token to the last by its clock; None if it does not report them. digest: of the text, hex.
    problem: why the answer is incomplete; fatal: further requests would fail too.
    """

    number: int
    pieces: list[ServedPiece] = field(default_factory=list)
    seconds: float = 0.0
    refused: int = 0
    n_predict: int | None = None
    n_prompt: int | None = None
    n_cached: int | None = None
    n_drafted: int | None = None
    n_accept: int | None = None
    decode_seconds: float | None = None
    digest: str = ""
    problem: SpecllamaError | None = None
    fatal: bool = False

    @property
    def n_chunks(self) -> int:
        return sum(piece.n for piece in self.pieces)

    @property
    def n_tokens(self) -> int:
        """The server's count, else the number of chunks."""
        return self.n_chunks if self.n_predict is None else self.n_predict

    def gaps(self) -> list[tuple[float, float]]:
        """(seconds per token, tokens) for each piece but the first.

        A piece's tokens share the time since the piece before; tokens are assumed to be spread evenly over
        the chunks.
        """
        each = self.n_tokens / self.n_chunks if self.n_chunks and self.n_tokens else 1.0
        pairs = zip(self.pieces, self.pieces[1:], strict=False)
        return [((b.at - a.at) / (b.n * each), b.n * each) for a, b in pairs]


class StreamReader:
    """Fills a ServedAnswer from the events of a stream in the formats of OpenAI, llama-server and vLLM."""

    def __init__(self, answer: ServedAnswer) -> None:
        self._answer, self._text, self._ended = answer, hashlib.sha256(), False

    def read(self, data: str, at: float, event: str = "message") -> bool:
        """Reads an event that arrived `at` seconds after the request; returns whether it was the last.

        Raises BrokenStreamError.
        """
        if data.strip() == "[DONE]":
            return True
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise BrokenStreamError("an event of the stream is not a JSON object")
        if event == "error" or chunk.get("error"):
            raise BrokenStreamError(f"the stream ends in an error: {error_text(chunk)}")
        self._counters(chunk)
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if isinstance(choice, dict):
            self._ended |= choice.get("finish_reason") is not None
            if text := _text(choice):
                self._text.update(text.encode("utf-8", "surrogatepass"))
                pieces = self._answer.pieces
                if pieces and at - pieces[-1].at < ONE_PIECE:
                    pieces[-1].n += 1
                else:
                    pieces.append(ServedPiece(at))
        return False

    def end(self) -> None:
        """Ends the answer. Raises BrokenStreamError if its last event is missing."""
        if not self._ended:
            raise BrokenStreamError("the stream ends in the middle of the answer")
        self._answer.digest = self._text.hexdigest()

    def _counters(self, chunk: JsonObject) -> None:
        """The same counters in three dialects; what a server leaves out stays None."""
        a, usage, timings = self._answer, _part(chunk, "usage"), _part(chunk, "timings")
        speculative = _part(_part(chunk, "metrics"), "speculative_decoding")
        details = _part(usage, "completion_tokens_details")
        a.n_predict = _first(_count(usage, "completion_tokens"), a.n_predict)
        a.n_prompt = _first(_count(usage, "prompt_tokens"), a.n_prompt)
        a.n_cached = _first(_count(_part(usage, "prompt_tokens_details"), "cached_tokens"), a.n_cached)
        ms = timings.get("predicted_ms")
        if isinstance(ms, (int, float)) and ms > 0:
            a.decode_seconds = ms / 1000
        for drafted, accept in (
            (_count(timings, "draft_n"), _count(timings, "draft_n_accepted")),
            (_count(speculative, "num_draft_tokens"), _count(speculative, "num_accepted_draft_tokens")),
            _predictions(details),
        ):
            if drafted is not None and accept is not None and accept <= drafted:
                a.n_drafted, a.n_accept = drafted, accept
                return


def error_text(body: Any) -> str:
    """The message of a server's error, in one line of printable characters."""
    text_or_object = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(text_or_object, dict):
        text_or_object = (
            text_or_object.get("message")
            or text_or_object.get("detail")
            or text_or_object.get("type")
            or text_or_object
        )
    text = " ".join(str(text_or_object).split())[:300]
    return "".join(c if c.isprintable() else "?" for c in text)


def _text(choice: JsonObject) -> str:
    """The text of a chunk. Reasoning and tool calls count too: the model writes them as well."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    parts = [delta.get(name) for name in ("reasoning_content", "reasoning", "content")]
    parts += [json.dumps(delta["tool_calls"])] if delta.get("tool_calls") else []
    return "".join(part for part in parts if isinstance(part, str))


def _predictions(details: JsonObject) -> tuple[int | None, int | None]:
    accept, rest = (_count(details, f"{name}_prediction_tokens") for name in ("accepted", "rejected"))
    return (None, None) if accept is None or rest is None or not accept + rest else (accept + rest, accept)


def _part(body: JsonObject, name: str) -> JsonObject:
    part = body.get(name)
    return part if isinstance(part, dict) else {}


def _count(body: JsonObject, name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
