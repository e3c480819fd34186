"""The overhead of HTTP between tokens: the same requests, decoded plainly, through `specllama serve` and by
an engine process with the same settings, in turn.
"""

from __future__ import annotations

import json
import random
import time
from http.client import HTTPConnection, HTTPException
from statistics import median
from typing import Any

from scripts.bench.server.programs import Files
from specllama.bench.serving.answer import (
    ONE_PIECE,
    BrokenStreamError,
    ServedAnswer,
    ServedPiece,
    StreamReader,
)
from specllama.bench.serving.summary import percentile
from specllama.bench.serving.sweep import PLAIN, ServingCell, SweepSettings, body
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.config.load import LoadSettings, ModelSettings
from specllama.errors import NetworkError

_SECONDS = 600.0  # that an answer may take


def engine(files: Files) -> EngineClient:
    """An engine with the settings of `serve`, without idle measuring."""
    client = EngineClient()
    main, small = (
        ModelSettings(path=str(path), n_ctx=files.n_ctx, n_threads=files.n_threads)
        for path in (files.target, files.draft)
    )
    draft = small if files.draft is not None else None
    client.load(LoadSettings(target=main, draft=draft, n_slots=files.n_slots, calibrate=False))
    return client


def overhead(port: int, client: EngineClient, settings: SweepSettings, model: str) -> dict[str, Any]:
    """Milliseconds between tokens (p50) through HTTP and of the engine, and the overhead of HTTP in two ways.

    added_ms: the median over requests of the difference of their p50s, which other load on the machine
    disturbs. added_mean_ms: the mean through HTTP minus the time that the server's engine reports for the
    same answer.

    Raises SpecllamaError.
    """
    connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
    rng, gaps = random.Random(0), dict[str, list[tuple[float, float]]](http=[], engine=[])
    differences, within = list[float](), list[float]()
    for number in range(-1, len(settings.prompts)):  # the first one warms up
        request = body(settings, ServingCell(PLAIN, 1, 0), max(0, number), model)
        found: dict[str, ServedAnswer] = {}
        for way in rng.sample(["http", "engine"], 2):
            found[way] = _stream(connection, request) if way == "http" else _generate(client, request)
        mine = {way: percentile(answer.gaps(), 0.5) for way, answer in found.items()}
        if number < 0 or mine["http"] is None or mine["engine"] is None:
            continue
        differences.append(1000 * (mine["http"] - mine["engine"]))
        within += _within(found["http"])
        for way, answer in found.items():
            gaps[way] += answer.gaps()
    p50 = {way: percentile(values, 0.5) for way, values in gaps.items()}
    return {
        "http_ms": None if p50["http"] is None else 1000 * p50["http"],
        "engine_ms": None if p50["engine"] is None else 1000 * p50["engine"],
        "added_ms": median(differences) if differences else None,
        "added_mean_ms": median(within) if within else None,
        "requests": len(differences),
    }


def _within(answer: ServedAnswer) -> list[float]:
    """Milliseconds per token outside the engine, for an answer whose server reports its decode time."""
    if answer.decode_seconds is None or answer.n_tokens < 2:
        return []
    seen = answer.pieces[-1].at - answer.pieces[0].at
    return [1000 * (seen - answer.decode_seconds) / (answer.n_tokens - 1)]


def _stream(connection: HTTPConnection, request: dict[str, Any]) -> ServedAnswer:
    """A request over HTTP with a minimal client. The one of `bench --server` spends more time on a token than
    the server's front, and on a machine without a free core decodes would wait for it.
    """
    answer, began = ServedAnswer(0), time.perf_counter()
    reader = StreamReader(answer)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
        response = connection.getresponse()
        while line := response.readline():
            if line.startswith(b"data:"):
                reader.read(line[5:].decode(), time.perf_counter() - began)
        reader.end()
    except (OSError, HTTPException, BrokenStreamError) as error:
        raise NetworkError(f"the server does not answer as it should: {error!r}") from None
    answer.seconds = time.perf_counter() - began
    return answer


def _generate(client: EngineClient, request: dict[str, Any]) -> ServedAnswer:
    """The same request without HTTP."""
    params = {name: request[name] for name in ("temperature", "seed", "max_tokens")}
    params["ignore_eos"] = request.get("ignore_eos", False)
    chat = protocol.ChatInput(request["messages"])
    generate = protocol.Generate(client.next_id(), chat, params, speculate=False)
    answer, began = ServedAnswer(0), time.perf_counter()
    for message in client.generate(generate):
        at = time.perf_counter() - began
        if isinstance(message, protocol.Tokens):
            if answer.pieces and at - answer.pieces[-1].at < ONE_PIECE:
                answer.pieces[-1].n += 1
            else:
                answer.pieces.append(ServedPiece(at))
        elif isinstance(message, protocol.Done):
            answer.n_predict = message.stats.n_predict
    answer.seconds = time.perf_counter() - began
    return answer
