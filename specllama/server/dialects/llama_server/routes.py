"""llama-server's own routes; those of OpenAI's API that it has too are in openai/routes.py."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

import specllama
from specllama.client import protocol
from specllama.client.model_info import LoadInfo, ModelInfo
from specllama.client.protocol import Slots, Tokenized
from specllama.config.text_file import expanded
from specllama.core.sampling.params import PARAMETERS, SamplingParams
from specllama.errors import (
    EngineDiedError,
    NotFoundError,
    NotSupportedError,
    ResourceError,
    SpecllamaError,
    UsageError,
)
from specllama.images import MEDIA_MARKER
from specllama.json_types import JsonObject
from specllama.option import Option
from specllama.server.dialects.llama_server.completion import InfillRequest, NativeRequest, NativeWriter
from specllama.server.dialects.shared.base import ApiRequest, ApiRoute, Dialect, Endpoint
from specllama.server.dialects.shared.chat_fields import TemplateInput
from specllama.server.dialects.shared.embedding import RerankRequest, embeddings, rerank
from specllama.server.dialects.shared.fields import AtMost, RequestBody
from specllama.server.dialects.shared.figures import generation_settings
from specllama.server.dialects.shared.sampling_fields import ModelName
from specllama.server.dialects.shared.writer import error_body
from specllama.server.events import to_json
from specllama.server.http.body import MAX_VALUES
from specllama.server.metrics import CONTENT_TYPE
from specllama.server.service import SHUTTING_DOWN

_STORED = tuple(p for p in PARAMETERS.values() if p.has_plain_value)
_PARAMS = tuple(p.name for p in _STORED)
_KINDS = {int: "integer", float: "number", bool: "boolean", str: "text"}


def props_of(
    info: LoadInfo,
    names: Sequence[str],
    sampling: Mapping[str, Any],
    decode_seconds: Sequence[tuple[int, float]] = (),
    sleeps: bool = False,
) -> JsonObject:
    """info: of the loaded models. names: of the model for clients. sampling: the server's own defaults, which
    take precedence over the model's. decode_seconds: see protocol.Slots. sleeps: the model is unloaded.
    """
    defaults = {name: sampling.get(name, getattr(info.sampling, name)) for name in _PARAMS}
    params = generation_settings(SamplingParams.merge(defaults), info.end_ids, info.drafters)
    return {
        "default_generation_settings": {"n_ctx": info.n_ctx, "params": params},
        "sampling_parameters": [_described(entry, defaults[entry.name]) for entry in _STORED],
        "total_slots": info.n_slots,
        "model_alias": ",".join(names),
        "model_path": os.path.abspath(info.target.path),
        "draft_model_path": os.path.abspath(info.draft.path) if info.draft else None,
        "modalities": {"vision": info.vision, "audio": False, "video": False},
        "media_marker": MEDIA_MARKER,
        "chat_template": info.template,
        "chat_template_caps": _capabilities(info),
        "model_ftype": info.target.quant,
        "endpoint_slots": True,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": f"specllama {specllama.__version__}",
        "speculation": {
            "speculation": info.speculation,
            "reason": info.off_reason,
            "drafters": list(info.drafters),
            "draft_max": info.draft_max,
            "longest_draft": info.longest_draft,
            "draft": _model(info.draft) if info.draft else None,
            "head": info.head,
            "head_in_target": info.head_in_target,
            "vocabulary": info.verdict,
            "memory": info.memory,
            "decode_seconds": [list(time) for time in decode_seconds],
        },
        "machine": {
            "n_threads": info.n_threads,
            "n_gpu_layers": info.target.n_gpu_layers,
            "n_layer": info.n_layer,
            "host_bytes": info.host_bytes,
            "device_bytes": info.device_bytes,
            "gpus": [{"name": g.description or g.name, "free": g.free, "total": g.total} for g in info.gpus],
        },
        "target": _model(info.target),
        "notes": [str(note) for note in info.notes],
        "is_sleeping": sleeps,
    }


def _described(entry: Option, default: Any) -> JsonObject:
    described: JsonObject = {
        "name": entry.name,
        "type": _KINDS[entry.kind],
        "many": entry.many,
        "description": entry.help.format(default=default),
    }
    if entry.is_number:
        described["minimum"], described["maximum"] = entry.low, entry.high
    return described


def _model(model: ModelInfo) -> JsonObject:
    return {"name": model.name, "quant": model.quant, "n_params": model.params}


def _capabilities(info: LoadInfo) -> dict[str, bool]:
    """Templates without tool support get tools and calls as text, so a working template suffices."""
    works = info.template_works
    features = (
        "string_content", "typed_content", "system_role", "tools", "tool_calls", "parallel_tool_calls",
        "object_arguments",
    )  # fmt: skip
    return {
        **{f"supports_{name}": works for name in features},
        "supports_preserve_reasoning": works and info.template_reasons,
        "supports_reasoning_effort": "reasoning_effort" in info.template,
    }


def _slots(state: Slots, info: LoadInfo, owner: str) -> list[JsonObject]:
    """The slots, without their prompts. state: the engine's answer to GetSlots. owner: of the request;
    for a slot last used by another owner, only whether it is busy is shown.
    """
    shown = []
    for slot in state.slots:
        busy, own = slot.id is not None, slot.owner == owner
        one: JsonObject = {
            "id": slot.slot,
            "id_task": slot.id if slot.id is not None and own else -1,
            "n_ctx": info.n_ctx,
            "speculative": not info.off_reason and (slot.speculate or not busy or not own),
            "is_processing": busy,
            "n_past": slot.n_past if own else 0,
        }
        if busy and own:
            one["n_prompt_tokens"] = slot.n_prompt
            one["n_prompt_tokens_processed"] = min(slot.n_past, slot.n_prompt)
            one["next_token"] = [{"has_next_token": True, "n_decoded": slot.n_decoded}]
            one["draft_n"], one["draft_n_accepted"] = slot.n_drafted, slot.n_accept
        shown.append(one)
    return shown


def _tokens(part: Tokenized, with_pieces: bool) -> bytes:
    """Items of a JSON array: ids, with their texts if with_pieces; a text that is not valid UTF-8 becomes a
    list of bytes.

    part: a part of the engine's answer to Tokenize.
    """
    shown: list[Any] = part.ids
    if with_pieces:
        pieces = (_piece(piece.encode("latin-1")) for piece in part.pieces)
        shown = [{"id": i, "piece": p} for i, p in zip(part.ids, pieces, strict=True)]
    return to_json(shown)[1:-1]


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


# The route that saves, restores and erases a slot.
#
# Checks what llama-server checks (`post_slots` in server-context.cpp, `fs_validate_filename` in common.cpp of
# the llama.cpp that is installed), in the same order. Each API key has a directory of its own below the one
# of --slot-save-path.


MAX_NAME = 255  # bytes
_FORBIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # control characters
    '/\\\\:*?"<>|'
    "\uff0e\u2215\u2216"  # that look like a dot or a slash
    "\ud800-\udfff\ufffd\ufeff]"  # surrogates, the replacement character, the byte order mark
)
_NUMBER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]{1,20})")  # std::stoi ignores what follows


class SlotFileRequest(RequestBody):
    """filename: of the file, without a directory."""

    filename: str


async def act(api: ApiRequest) -> Response:
    """Raises NotSupportedError without --slot-save-path, UsageError."""
    directory = api.settings.slot_save_path
    if not directory:
        raise NotSupportedError("slots are not saved here: start the server with --slot-save-path DIR")
    slot = _slot(str(api.path_params["slot"]))
    action: Any = api.query_params.get("action", "")
    if action not in ("save", "restore", "erase"):
        raise UsageError("Invalid action: it is save, restore or erase")
    if action == "erase":
        erased = await api.supervisor.query(
            lambda id_: protocol.SlotAction(id_, slot, action, owner=api.owner), protocol.SlotDone
        )
        return JSONResponse({"id_slot": slot, "n_erased": erased.n_tokens})
    name = (await api.body(SlotFileRequest)).filename
    if not is_file_name(name):
        raise UsageError("Invalid filename", details={"param": "filename"})
    folder = api.scopes.folder(api.owner)
    if folder is None:
        raise NotSupportedError("slots of different keys cannot be told apart: the cache is not usable")
    path = os.path.abspath(expanded(directory) / folder / name)
    done = await api.supervisor.query(
        lambda id_: protocol.SlotAction(id_, slot, action, path, api.owner, api.scopes.of(api.owner)),
        protocol.SlotDone,
    )
    tokens, n_bytes = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    shown = {"id_slot": slot, "filename": name, tokens: done.n_tokens, n_bytes: done.n_bytes}
    return JSONResponse({**shown, "timings": {f"{action}_ms": 1000 * done.seconds}})


def is_file_name(name: str) -> bool:
    """Whether llama-server accepts this file name."""
    try:
        n_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if not 0 < n_bytes <= MAX_NAME or _FORBIDDEN.search(name):
        return False
    return name[0] != " " and name[-1] not in " ." and ".." not in name


def _slot(text: str) -> int:
    number = _NUMBER.match(text)
    if not number or not -(2**31) <= int(number[1]) < 2**31:
        raise UsageError("Invalid slot ID")
    return int(number[1])


_PEEK_SECONDS = 1.0  # longest wait of /props for the engine's own figures


class TokenizeRequest(RequestBody):
    """with_pieces: each token's text next to its id."""

    model: ModelName | None = None
    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(RequestBody):
    """tokens: ids of the model's vocabulary."""

    model: ModelName | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], AtMost(MAX_VALUES)]


async def completion(api: ApiRequest, model: type[NativeRequest] = NativeRequest) -> Response:
    body = await api.body(model)
    api.check_model(body.model)
    supervisor, drafts = api.supervisor, body.speculation.enabled  # not the body: it may be large

    def facts() -> tuple[Sequence[int], Sequence[str]]:
        info = supervisor.info
        return info.end_ids, info.drafters if drafts else ()

    return await api.answer(body, lambda options: NativeWriter(options, body.native_options(facts)))


async def live(_api: ApiRequest) -> Response:
    """Whether this process answers: while it loads, drains or waits for an engine, too."""
    return JSONResponse({"status": "ok"})


async def drain(api: ApiRequest) -> Response:
    """Answers at once; the server ends when its requests have."""
    api.check_administers("drain the server")
    admission, seconds = api.models.admission, api.settings.drain_seconds
    admission.drain()
    n = len(admission.requests) + len(admission.vectors)
    return JSONResponse({"status": "draining", "requests": n, "seconds": seconds})


async def health(api: ApiRequest, ready: bool = False) -> Response:
    """Never waits for the engine. Without a valid key no details are shown. ready: also for new requests."""
    known = bool(api.owner) or not api.settings.keys
    try:
        api.check_model(None)
    except NotFoundError as unknown:  # which names the models
        raise unknown if known else NotFoundError("there is no such model here") from None
    problem = api.supervisor.problem if known else api.supervisor.public_problem
    if not problem and api.service.lease.state == "unloaded":
        damage = (await api.models.details(api.service.model)).problem
        problem = "" if damage is None else damage.message if known else "the model cannot be loaded"
    if (ready or "ready" in api.query_params) and api.models.admission.draining:
        problem = SHUTTING_DOWN
    if problem:
        error = {"code": 503, "message": problem, "type": "unavailable_error"}
        return JSONResponse({"status": "error", "error": error}, 503, {"retry-after": "1"})
    return JSONResponse({"status": "ok"})


async def metrics(api: ApiRequest) -> Response:
    text = await api.models.metrics(api.owner, api.query_params.get("model") or None)
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def props(api: ApiRequest) -> Response:
    info = await api.supervisor.load()
    sleeps = api.service.lease.state == "unloaded"
    times: Sequence[tuple[int, float]] = ()
    if not sleeps:
        with contextlib.suppress(SpecllamaError, TimeoutError):
            state = await api.supervisor.peek(protocol.GetSlots, protocol.Slots, _PEEK_SECONDS)
            times = state.decode_seconds
    return JSONResponse(props_of(info, api.service.names, api.settings.sampling, times, sleeps))


async def slots(api: ApiRequest) -> Response:
    """An unloaded model has none, nor has one that is being unloaded meanwhile."""
    await api.find_model(None)
    lease = api.service.lease
    if not lease.has_engine:
        return JSONResponse([])
    try:
        await api.supervisor.engine()
        state = await api.supervisor.peek(protocol.GetSlots, protocol.Slots)
    except EngineDiedError:
        if lease.has_engine:
            raise
        return JSONResponse([])
    if api.query_params.get("fail_on_no_slot") and all(slot.id is not None for slot in state.slots):
        raise ResourceError("no slot is free", "ask again later")
    return JSONResponse(_slots(state, api.supervisor.info, api.owner))


async def tokenize(api: ApiRequest) -> Response:
    body = await api.body(TokenizeRequest)
    api.check_model(body.model)
    parts: list[bytes] = []
    await api.supervisor.collect(
        lambda id_: protocol.Tokenize(
            id_, body.content, body.add_special, body.parse_special, body.with_pieces
        ),
        protocol.Tokenized,
        lambda part: parts.append(_tokens(part, body.with_pieces)),
    )
    return Response(b'{"tokens":[' + b",".join(filter(None, parts)) + b"]}", media_type="application/json")


async def detokenize(api: ApiRequest) -> Response:
    body = await api.body(DetokenizeRequest)
    api.check_model(body.model)
    return await _text(api, partial(protocol.Detokenize, ids=body.tokens), b"content")


async def apply_template(api: ApiRequest) -> Response:
    body = await api.body(TemplateInput)
    api.check_model(body.model)
    await api.read_images(body, MEDIA_MARKER)
    chat = body.chat_input(api.settings.variables)
    return await _text(api, partial(protocol.Render, chat=chat), b"prompt")


async def _text(api: ApiRequest, question: Callable[[int], protocol.Question], field: bytes) -> Response:
    """The text that answers a question, in a field of an object."""
    parts: list[bytes] = []
    await api.supervisor.collect(
        question, protocol.QueriedText, lambda part: parts.append(to_json(part.text)[1:-1])
    )
    return Response(b'{"' + field + b'":"' + b"".join(parts) + b'"}', media_type="application/json")


class ModelRequest(RequestBody):
    """The body of these routes."""

    model: Annotated[str, Field(min_length=1, max_length=512)]


async def load(api: ApiRequest) -> Response:
    """Answers when the model is loaded."""
    api.check_model((await api.body(ModelRequest)).model)
    await api.load_model()
    return JSONResponse({"success": True})


async def unload(api: ApiRequest) -> Response:
    """Running requests finish first."""
    await api.find_model((await api.body(ModelRequest)).model)
    api.check_administers()
    api.models.unload(api.service)
    return JSONResponse({"success": True})


async def pull(api: ApiRequest, stop: bool = False) -> Response:
    """Answers at once; the list of models shows the progress. Bytes that have arrived are kept."""
    name = (await api.body(ModelRequest)).model
    api.check_administers("download models")
    api.models.pull(name, stop)
    return JSONResponse({"success": True})


_NO_SOUND = "this server transcribes no sound"
_NO_ADAPTERS = "LoRA adapters are loaded at the start (--lora), and are the same for all requests"
UNSUPPORTED: Mapping[tuple[str, str], str] = {
    ("POST", "/audio/transcriptions"): _NO_SOUND,
    ("POST", "/v1/audio/transcriptions"): _NO_SOUND,
    ("POST", "/props"): "settings cannot be changed while the server runs; its flags set them",
    ("GET", "/lora-adapters"): _NO_ADAPTERS,
    ("POST", "/lora-adapters"): _NO_ADAPTERS,
}
"""Routes that llama-server has and this server does not: clients get an error that says so."""


def _refusing(error: NotSupportedError) -> Endpoint:
    async def refuse(_api: ApiRequest) -> Response:
        raise error

    return refuse


_INFILL = partial(completion, model=InfillRequest)
DIALECT = Dialect(
    error_body,
    (
        ApiRoute("GET", "/health", health, "Whether the engine answers", open=True),
        ApiRoute("GET", "/v1/health", health, open=True),
        ApiRoute("GET", "/health/live", live, "Whether the server answers", open=True),
        ApiRoute("GET", "/health/ready", partial(health, ready=True), "Whether it takes requests", open=True),
        ApiRoute("POST", "/drain", drain, "End the server when its requests have ended"),
        ApiRoute("POST", "/completion", completion, "Continue a prompt", NativeRequest),
        ApiRoute("POST", "/completions", completion),
        ApiRoute("POST", "/infill", _INFILL, "Fill a gap in a text", InfillRequest),
        ApiRoute("GET", "/metrics", metrics, "Figures for Prometheus"),
        ApiRoute("GET", "/props", props, "The server's settings"),
        ApiRoute("GET", "/slots", slots, "What each slot is doing"),
        ApiRoute("POST", "/tokenize", tokenize, "The ids of a text", TokenizeRequest),
        ApiRoute("POST", "/detokenize", detokenize, "The text of ids", DetokenizeRequest),
        ApiRoute("POST", "/apply-template", apply_template, "The prompt of a conversation", TemplateInput),
        ApiRoute("POST", "/models/load", load, "Load a model", ModelRequest),
        ApiRoute("POST", "/models/unload", unload, "Unload a model", ModelRequest),
        ApiRoute("POST", "/models/pull", pull, "Download a known model", ModelRequest),
        ApiRoute("POST", "/models/pull/stop", partial(pull, stop=True), "End that", ModelRequest),
        ApiRoute("POST", "/slots/{slot}", act, "Save, restore or erase a slot", SlotFileRequest),
        ApiRoute("POST", "/embedding", partial(embeddings, own_shape=True)),
        ApiRoute("POST", "/embeddings", partial(embeddings, own_shape=True)),
        ApiRoute("POST", "/v1/rerank", rerank, "Rank documents for a query", RerankRequest),
        *(ApiRoute("POST", path, rerank) for path in ("/rerank", "/reranking", "/v1/reranking")),
        *(ApiRoute(*at, _refusing(NotSupportedError(reason))) for at, reason in UNSUPPORTED.items()),
    ),
)
