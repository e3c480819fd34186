"""`specllama run`: one prompt, one answer."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from specllama.cli import console, readout
from specllama.cli.answer import (
    INTERRUPTED,
    calibrate,
    check_reads_images,
    cut_short,
    engine,
    generate,
    given_images,
    load,
    may_loop,
    placed,
)
from specllama.cli.options import resolved, sampling
from specllama.cli.progress import prepared
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.config import build, defaults
from specllama.config.forms import unescaped
from specllama.config.sources import MODEL, Values
from specllama.config.text_file import STDIN, read_text, standard_input, without_last_newline
from specllama.core.gain import compared_rate
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.text.prompt_parts import reasoning_variables

_SLOW = 2.0  # seconds without an end of standard input, after which a line says what is waited for
# llama3.2, qwen3:8b, gemma-3-4b, user/repo, main.gguf: a letter and a digit, or a place, and no blank
_MODEL = re.compile(
    r"(?=\S*[a-z])(?:[\w.-]*[a-zA-Z-]\d[\w.:-]*|[\w.-]+:[\w.-]+|[\w.:/-]+/[\w.:-]+|\S+\.gguf)"
)


def typed_prompt(values: Mapping[str, Any]) -> str:
    """The prompt: that of -p or the words, then the file's, then standard input's where it is no terminal;
    with --raw nothing stands between them, else an empty line. Raises UsageError, NotFoundError.
    """
    typed = _typed(values)
    parts = [] if typed is None else [typed]
    if "file" in values:
        text = without_last_newline(read_text(values["file"], "file"))
        parts.append(unescaped(text, "file") if values.get("escape") else text)
    if values.get("file") != STDIN and not standard_input.taken_by:
        parts += _piped(bool(parts))
    if not parts:
        raise UsageError(
            "there is no prompt", 'give one: specllama run -p "..." (or -f FILE, or on standard input)'
        )
    return ("" if values.get("raw") else "\n\n").join(parts)


def _typed(values: Mapping[str, Any]) -> str | None:
    """The prompt on the command line. Raises UsageError for a model's name where no flag names one."""
    words: Sequence[str] = values.get("words", ())
    flags = values.keys() - (values.origins if isinstance(values, Values) else {})
    if words and "prompt" in values:
        shown = " ".join(words)[:60]
        raise UsageError(
            f"there are two prompts: that of -p and {shown!r}", "put the whole prompt in quotation marks"
        )
    if words and not flags & {*MODEL} and _MODEL.fullmatch(words[0]):
        rest = " ".join(words[1:]) or "..."
        raise UsageError(
            f"{words[0]!r} looks like the name of a model, and a prompt is expected here",
            f'specllama run -m {words[0]} -p "{rest}", or specllama chat -m {words[0]}; '
            "-p makes any text a prompt",
        )
    return " ".join(words) if words else values.get("prompt")


def _piped(has_prompt: bool) -> list[str]:
    """What is piped to standard input, without a newline at its end; nothing if it is a terminal, or empty
    and not the only prompt. Raises UsageError.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return []
    slow = threading.Timer(_SLOW, console.note, ["waiting for the end of standard input (< /dev/null: none)"])
    slow.daemon = True
    slow.start()
    try:
        text = without_last_newline(standard_input.read("the prompt"))
    finally:
        slow.cancel()
    return [] if has_prompt and not text.strip() else [text]


def run(given: Mapping[str, Any]) -> int:
    """Generate and print the answer; returns the exit code. Raises SpecllamaError."""
    values = resolved(given)
    params = sampling(values)
    if "logprobs" in values and not values.get("json"):
        raise UsageError("--logprobs has nowhere to go", "add --json, which shows them")
    images = [one.image for one in given_images(values)]
    if not images and "mmproj" not in values:
        values["no_mmproj"] = True  # texts need none
    request = _request(values, params, images)
    if "prediction" in values:
        request = replace(request, prediction=read_text(values["prediction"], "prediction"))
    values["no_memory"] = True  # one request has no earlier ones
    wanted = build.load_settings(values, kept_seconds=defaults.KEPT_SECONDS_OF_RUN)
    settings = prepared(wanted, values)  # last: it may download
    check_reads_images(images, bool(settings.projector), settings.target.path)
    as_json, structured = values.get("json", False), "json_schema" in params or "grammar" in params
    with engine(values) as client:
        line, chats = partial(readout.start_line, structured=structured), request.chat is not None
        info = load(client, values, settings, line, chats)
        check_reads_images(images, info.vision, info.target.path)
        if request.chat is not None and not info.template:
            request = _continued(request, request.chat)
        if may_loop(params) and (as_json or values.get("quiet") or not sys.stdout.isatty()):
            request = replace(request, end_loops=True)
        show = None if as_json else lambda text, _: console.data(text)
        answer = generate(client, request, show, _result(request, info))
        interrupted = answer.finish_reason == "cancel"
        compare = values.get("compare") and not interrupted
        compared = _compare(client, request, answer, info) if compare else None
        if compared is not None and compared.finish_reason == "cancel":
            interrupted, compared = True, None
        _show(answer, compared, info, len(images), as_json, values.get("verbose", False))
        why, error = cut_short(answer, info.n_ctx)
        if error is None and (why or interrupted):
            console.note(f"note: {why or 'stopped'}")
        if settings.calibrate and not interrupted and answer.unmeasured:
            calibrate(client)
    if error is not None:
        raise error
    return INTERRUPTED if interrupted else 0


def _request(
    values: Mapping[str, Any], params: JsonObject, images: list[protocol.Image]
) -> protocol.Generate:
    prompt = placed(typed_prompt(values), images)
    if values.get("raw"):
        if "system_prompt" in values:
            raise UsageError("-sys needs the chat template, --raw switches it off")
        return protocol.Generate(1, protocol.TextInput(prompt, images), params)
    if not prompt.strip():
        raise UsageError("the prompt is empty", "give some text with -p, -f or on standard input")
    messages = [{"role": "user", "content": prompt}]
    if "system_prompt" in values:
        messages.insert(0, {"role": "system", "content": values["system_prompt"]})
    variables = reasoning_variables(values.get("reasoning", "auto"))
    return protocol.Generate(1, protocol.ChatInput(messages, variables, images=images), params)


def _continued(request: protocol.Generate, chat: protocol.ChatInput) -> protocol.Generate:
    """The request for a model without a chat template: it goes on with the text of the prompt. Raises
    UsageError with a system message, for which there is no place.
    """
    if len(chat.messages) > 1:
        raise UsageError(
            "-sys needs a chat template, and this model has none", "write it at the start of the prompt"
        )
    console.note("the model has no chat template: it goes on with the text of the prompt")
    return replace(request, prompt=protocol.TextInput(chat.messages[-1]["content"], chat.images))


def _result(request: protocol.Generate, info: LoadInfo) -> GenerationResult:
    """The result of a request, before its first message."""
    return GenerationResult(None if request.chat is None else info.answer_reader(None))


def _compare(
    client: EngineClient, request: protocol.Generate, answer: GenerationResult, info: LoadInfo
) -> GenerationResult:
    """The same request without drafts. The first decodes after a prompt take longer: unless that was longer
    than the answer, it is evaluated again.
    """
    params, stats = {**request.params, "seed": answer.seed}, answer.stats
    id_ = client.next_id() + request.id
    reuse = request.reuse and bool(stats.n_reused or stats.encode_seconds > stats.decode_seconds)
    plain = replace(request, id=id_, params=params, speculate=False, reuse=reuse)
    return generate(client, plain, into=_result(request, info))


def _show(
    answer: GenerationResult,
    compared: GenerationResult | None,
    info: LoadInfo,
    n_images: int,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the object or the read-out. verbose: with all figures."""
    plain = answer.plain if compared is None else compared_rate(compared.stats)
    if as_json:
        result = readout.as_json(answer, plain, info)
        if n_images:
            result["images"] = n_images
        if answer.logprobs:
            result["logprobs"] = [p.to_dict() for p in answer.logprobs]
        if compared is not None:
            result["compare"] = {
                "decode_tps": compared.stats.decode_tps,
                "identical": compared.ids == answer.ids,
            }
            if compared.stats.exact_width is not None:
                result["compare"]["exact_width"] = compared.stats.exact_width
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        console.data(json.dumps(result, ensure_ascii=ascii_only) + "\n")
        return
    console.data("" if answer.text.endswith("\n") else "\n")
    console.note("")
    advice = "" if compared is not None else "--compare measures it"
    read_out = readout.lines if verbose else readout.summary
    for line in read_out(answer.stats, plain, answer.off_reason, answer.seed, advice):
        console.note(line)
    if compared is not None:
        same = "the same text" if compared.ids == answer.ids else "ANOTHER text (see --exact)"
        rows = answer.stats.exact_width
        if compared.ids != answer.ids and rows and compared.stats.exact_width != rows:
            same = f"a text of single rows; --exact-width {rows} --draft-max 0 writes this one again"
        rate = f"plain {plain.tps:.1f} t/s" if plain.tps else "no speed, as nothing follows the first token"
        console.note(f"compare   = {rate}, {same}")
