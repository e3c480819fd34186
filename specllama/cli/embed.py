"""`specllama embed`: the vectors of texts, or their scores as answers to a query."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from specllama.cli import console
from specllama.cli.answer import engine, load
from specllama.cli.options import resolved
from specllama.cli.progress import prepared
from specllama.client import protocol
from specllama.client.model_info import LoadInfo
from specllama.config import build
from specllama.config.text_file import read_text, standard_input
from specllama.errors import SpecllamaError, UsageError, option
from specllama.json_types import JsonObject


def embed(given: Mapping[str, Any]) -> int:
    """Print the vectors or scores; returns the exit code. Raises SpecllamaError."""
    try:
        return _embed(given)
    except SpecllamaError as error:
        here = {"embeddings": "-m", "words": "TEXT"}
        raise error.with_option_names(lambda name, value: here.get(name) or option(name, value)) from error


def _embed(given: Mapping[str, Any]) -> int:
    values = resolved(given)
    texts = _texts(values)
    n = values.get("dimensions", 0)
    if "dimensions" in values and n < 1:
        raise UsageError(f"must be a whole number from 1, not {n}", option="dimensions")
    settings = prepared(build.embedder_settings(values, alone=True), values)
    with engine(values) as client:
        info = load(client, values, settings)
        query, cut = values.get("query"), values.get("truncate", False)
        if query is None and info.embedding is not None and info.embedding.ranks:
            raise UsageError("is missing: this model ranks texts for it and makes no vectors", option="query")
        order = protocol.Embed(client.next_id(), [*texts], query, n_values=n, truncate=cut, pooled=False)
        made = client.embed(order)
    if query is not None:
        ranked = sorted(made, key=lambda one: -one.numbers()[0][0])
        lines = [f"{one.numbers()[0][0]:.6f}  {' '.join(texts[one.text_index].split())}" for one in ranked]
    else:
        lines = [" ".join(f"{x:.9g}" for x in row) for one in made for row in one.numbers()]
    return console.report(values, _report(info, query, texts, made), lines)


def _texts(values: Mapping[str, Any]) -> list[str]:
    """The texts: the words, then the lines of the file, else those of standard input. Raises UsageError."""
    texts = list(values.get("words", ()))
    if "file" in values:
        texts += read_text(values["file"], "file").splitlines()
    elif not texts and sys.stdin is not None and not sys.stdin.isatty():
        texts = standard_input.read("the texts").splitlines()
    if not texts:
        raise UsageError(
            "there is no text", f"give some: specllama embed -m MODEL TEXT..., or {option('file')} FILE"
        )
    return texts


def _report(
    info: LoadInfo, query: str | None, texts: list[str], made: list[protocol.TextVectors]
) -> JsonObject:
    assert info.embedding is not None
    items: list[JsonObject] = []
    for one in made:
        rows = one.numbers()
        item: JsonObject = {"index": one.text_index, "n_tokens": one.n_tokens}
        if info.embedding.ranks:
            item |= {"score": rows[0][0], "text": texts[one.text_index]}
        else:
            item["embedding"] = rows if info.embedding.pooling == "none" else rows[0]
        items.append(item)
    shown: JsonObject = {"model": info.target.name, "pooling": info.embedding.pooling, "query": query}
    return {**shown, "n_tokens": sum(one.n_tokens for one in made), "results": items}
