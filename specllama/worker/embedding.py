"""An engine that makes vectors and scores of texts: a queue of requests, whose texts share decodes.

Every decode takes a text of each request in turn, up to n_ubatch tokens, so that a request of a thousand
texts does not hold up one of a single text; a longer text is computed alone. Texts become ids in their turn.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from specllama.client import protocol
from specllama.client.model_info import EmbeddingInfo, LoadInfo
from specllama.client.tune_messages import Calibrate, Calibrated
from specllama.clock import running_time
from specllama.core.interfaces import DecodeError
from specllama.errors import ContextLengthError, EngineError, Note, SpecllamaError, UsageError, option
from specllama.gguf.architectures import computed_at_once, is_embedder, may_shorten, pooling_of
from specllama.gguf.header import read_model
from specllama.heads.check import check_embedder
from specllama.llama.embedding import MAX_TEXTS, EmbeddingContext, normalised, ranking_ids
from specllama.llama.library import devices
from specllama.llama.model import LlamaModel
from specllama.models.memory.available import available_memory
from specllama.models.memory.plan import on_gpus, plan_embedder
from specllama.worker.conversations import detokenize, token_bytes
from specllama.worker.draft import checked_header, fitted_to, gpus, reporter
from specllama.worker.load_info import facts
from specllama.worker.loader import slow_seconds

_MOST_NUMBERS = 3_000_000  # of a text without pooling, so that they fit into a message as text
_NO_DRAFT = f"{option('draft_model')}: of no effect on an embedding model, which writes no texts"
_NICENESS = 10  # of a process that gives way to others


def loads_embedder(order: protocol.Load) -> bool:
    """Whether a load is one of an embedding model. Raises what `read_model` raises."""
    settings = order.settings
    return settings.pooling is not None or (order.may_embed and is_embedder(read_model(settings.target.path)))


class _EmbedRequest:
    """A request whose texts are not all computed. n_left: those without a vector."""

    def __init__(self, message: protocol.Embed) -> None:
        self.message = message
        self.n_left = len(message.texts)
        self._next = 0
        self._ids: list[int] = []  # of the next text, [] before it is tokenised

    @property
    def has_texts(self) -> bool:
        return self._next < len(self.message.texts)

    def ids(self, model: LlamaModel, limit: int) -> list[int]:
        """The ids of the next text. limit: most of them. Raises UsageError, ContextLengthError."""
        self._ids = self._ids or self._made(self.message.texts[self._next], model, limit)
        return self._ids

    def take(self) -> tuple[int, list[int]]:
        """The index of the next text and its ids; goes on to the one after it."""
        index, ids = self._next, self._ids
        self._next, self._ids = index + 1, []
        return index, ids

    def _made(self, text: str | list[int], model: LlamaModel, limit: int) -> list[int]:
        message, which = self.message, f"text {self._next + 1} of {len(self.message.texts)}"
        if isinstance(text, list):
            ids = text
            if wrong := next((i for i in ids if not 0 <= i < model.n_vocab), None):
                raise UsageError(f"{which} has the id {wrong}, not in the vocabulary of {model.n_vocab}")
        elif message.query is not None:
            ids = ranking_ids(model, message.query, text)
        else:
            ids = model.tokenize(text, True, True)
        if not ids:
            raise UsageError(f"{which} is empty: it has no tokens")
        if len(ids) <= limit:
            return ids
        if message.truncate:
            # The last token may be one that the vocabulary puts at the end of every text.
            return [*ids[: limit - 1], ids[-1]] if message.query is None else ids[:limit]
        with_query = " with the query" if message.query is not None else ""
        raise ContextLengthError(
            f"{which}{with_query} has {len(ids)} tokens, and this model reads {limit} at most",
            f"send it in shorter pieces{', or a shorter query' if with_query else ''}",
            {"n_prompt_tokens": len(ids), "n_ctx": limit, "index": self._next},
        )


class EmbeddingEngine:
    """To EngineCore the same as a LoadedEngine. Raises IntegrityError, ResourceError, UsageError."""

    loaded: None = None
    engine: None = None

    def __init__(self, order: protocol.Load, send: protocol.Send) -> None:
        started = running_time()
        settings, self.send, self.requests = order.settings, send, deque[_EmbedRequest]()
        wanted = settings.pooling or "auto"
        self.header = header = checked_header(settings.target, lambda header: check_embedder(header, wanted))
        pooling = pooling_of(header, wanted)
        if order.yields and hasattr(os, "nice"):
            os.nice(_NICENESS)
        settings = on_gpus(settings, [d.name for d in devices() if d.gpu])
        plan = plan_embedder(settings, header, available_memory(), gpus())
        fitted = fitted_to(settings.target, plan.target.n_gpu_layers)
        self.model = LlamaModel(fitted, reporter("target", send))
        self.context = EmbeddingContext(self.model, plan.n_ctx, pooling, computed_at_once(header, pooling))
        shortens = may_shorten(header) and pooling not in ("none", "rank")
        self.info = EmbeddingInfo(pooling, self.context.n_values, shortens)
        self._n_together = min(settings.target.n_ubatch, self.context.n_rows)  # tokens of several texts
        self.context.embed([[max(0, self.model.bos_id)]])  # page faults and allocations
        seconds = running_time() - started
        described = LoadInfo(
            **facts(settings.target.path, header, self.model, self.context, plan),
            notes=tuple(map(Note, [*plan.warnings, *([_NO_DRAFT] if settings.draft is not None else [])])),
            off_reason=writes_nothing(header.name, self.info),
            load_seconds=seconds,
            embedding=self.info,
        )
        self.ready = protocol.Ready(described)

    def handle(self, message: protocol.Message, _size: int = 0) -> None:
        if isinstance(message, protocol.Embed):
            self._check(message)
            self.requests.append(_EmbedRequest(message))
        elif isinstance(message, protocol.Cancel):
            self._drop(message.id)
        elif isinstance(message, protocol.Tokenize):
            ids = self.model.tokenize(message.text, message.add_special, message.parse_special)
            pieces = [token_bytes(self.model, i).decode("latin-1") for i in ids if message.with_pieces]
            self.send(protocol.Tokenized(message.id, ids, pieces))
        elif isinstance(message, protocol.Detokenize):
            if not all(0 <= i < self.model.n_vocab for i in message.ids):
                raise UsageError(f"an id is not in the vocabulary of {self.model.n_vocab}")
            text = detokenize(self.model, message.ids, special=not message.skip_special)
            self.send(protocol.QueriedText(message.id, text))
        elif isinstance(message, protocol.GetSlots):
            self.send(protocol.Slots(message.id, [], len(self.requests), 0, self.context.n_ctx))
        elif isinstance(message, Calibrate):
            self.send(Calibrated(None, None, False))
        else:
            raise UsageError(writes_nothing(self.header.name, self.info))

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    decoding = busy

    @property
    def step_due_in(self) -> float | None:
        return 0.0 if self.requests else None

    @property
    def predicted_seconds(self) -> float:
        """Of a step, on a very slow machine."""
        return slow_seconds(self.header, self.context.n_ctx)

    def step(self) -> None:
        chosen = self._chosen()
        if not chosen:
            return
        try:
            vectors = self.context.embed([ids for _, _, ids in chosen])
        except DecodeError as error:
            for request in {id(one): one for one, _, _ in chosen}.values():
                self._fail(request, EngineError(f"the vectors could not be computed: {error}"))
            return
        made: dict[int, list[protocol.TextVectors]] = {}
        for (request, index, ids), rows in zip(chosen, vectors, strict=True):
            with self._failing(request):
                written = self._written(request.message, index, rows)
                made.setdefault(request.message.id, []).append(protocol.TextVectors(index, len(ids), written))
        for request in [one for one in self.requests if one.message.id in made]:
            items = made[request.message.id]
            request.n_left -= len(items)
            if not request.n_left:
                self.requests.remove(request)
            self.send(protocol.Embedded(request.message.id, items, more=bool(request.n_left)))

    def shut_down(self) -> None:
        """See EngineCore; nothing is kept."""

    def _check(self, message: protocol.Embed) -> None:
        """Raises UsageError for what the model does not do."""
        info, name = self.info, self.header.name
        if not message.texts:
            raise UsageError("there is no text")
        if (message.query is not None) != info.ranks:
            does = "ranks documents for a query, and makes no vectors" if info.ranks else "ranks nothing"
            other = "an embedding model makes them" if info.ranks else "a reranker does"
            raise UsageError(f"{name} {does}: {other} (docs/embeddings.md)")
        if message.pooled and info.pooling == "none":
            one = f"{option('pooling')} mean, cls or last makes one of a text"
            raise UsageError(f"{name} makes a vector of each token: {one}")
        n = message.n_values
        if n and n != info.n_values and not (info.shortens and 0 < n < info.n_values):
            reason = f"from 1 to {info.n_values}" if info.shortens else f"{info.n_values}"
            only = "" if info.shortens else ": it was not trained for shorter ones"
            raise UsageError(f"{name} makes vectors of {reason} numbers, not {n}{only}")

    def _chosen(self) -> list[tuple[_EmbedRequest, int, list[int]]]:
        """The texts of the next decode, with their requests and indices. Requests that fail are removed."""
        chosen: list[tuple[_EmbedRequest, int, list[int]]] = []
        n_rows, waiting = 0, deque(request for request in self.requests if request.has_texts)
        while waiting and len(chosen) < MAX_TEXTS:
            request = waiting.popleft()
            ids: list[int] = []
            with self._failing(request):
                ids = request.ids(self.model, self.context.n_ctx)
            if not ids:
                chosen = [one for one in chosen if one[0] is not request]
                continue
            if chosen and n_rows + len(ids) > self._n_together:
                break
            n_rows += len(ids)
            chosen.append((request, *request.take()))
            if request.has_texts:
                waiting.append(request)
        if self.requests and chosen:  # another one is the first of the next decode
            self.requests.rotate(-1)
        return chosen

    def _written(self, message: protocol.Embed, index: int, rows: NDArray[np.float32]) -> list[str]:
        """The vectors of a text for the message. Raises EngineError for numbers that are not finite."""
        if rows.size > _MOST_NUMBERS:
            raise UsageError(
                f"text {index + 1} has {len(rows)} vectors, too many for an answer: send it in pieces"
            )
        if not np.isfinite(rows).all():
            raise EngineError(f"the model gave numbers that are not finite for text {index + 1}")
        if not self.info.ranks and self.info.pooling != "none":
            rows = normalised(rows[:, : message.n_values or None], message.norm)
        if message.as_text:  # nine digits are enough for any float32
            return [",".join(["%.9g"] * len(row)) % tuple(row.tolist()) for row in rows]
        return [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in rows]

    @contextlib.contextmanager
    def _failing(self, request: _EmbedRequest) -> Iterator[None]:
        try:
            yield
        except SpecllamaError as error:
            self._fail(request, error)

    def _fail(self, request: _EmbedRequest, error: SpecllamaError) -> None:
        self._drop(request.message.id)
        self.send(protocol.Failed(error.to_dict(), request.message.id))

    def _drop(self, id_: int) -> None:
        for request in [one for one in self.requests if one.message.id == id_]:
            self.requests.remove(request)


def writes_nothing(name: str, info: EmbeddingInfo) -> str:
    """That an embedding model was asked for what only models that write texts do."""
    return f"{name} {'ranks documents' if info.ranks else 'makes vectors of texts'}, and writes none"
