"""`specllama run`: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specllama.cli import console, readout
from specllama.cli.answer import (
    INTERRUPTED,
    calibrate,
    cut_short,
    engine_log,
    generate,
    load,
    log_file,
    may_loop,
)
from specllama.cli.download import prepared
from specllama.cli.files import resolved
from specllama.cli.prompt import typed_prompt
from specllama.client import protocol
from specllama.client.client import EngineClient
from specllama.client.model_info import LoadInfo
from specllama.client.stream import GenerationResult
from specllama.config import build, defaults
from specllama.config.load import LoadSettings
from specllama.core.gain import PlainRate, compared_rate
from specllama.errors import UsageError
from specllama.json_types import JsonObject
from specllama.text.template_variables import reasoning_variables

EXAMPLES = """
Examples:
  specllama run -p 'What does shutil.copytree do?'
  specllama run -m 8B -md 1B -p 'Who was the first prime minister of Britain?'
  specllama run -m main.gguf -md draft.gguf -n 128 --temp 0 -f prompt.txt
  git diff | specllama run -m main.gguf -sys 'Summarise this diff.' --json
"""


def run(given: Mapping[str, Any]) -> int:
    """Generate and print the answer; returns the exit code. Raises SpecllamaError."""
    values = resolved(given)
    params = build.sampling(values)
    if "logprobs" in values and not values.get("json"):
        raise UsageError("--logprobs has nowhere to go", "add --json, which shows them")
    request = _request(values, params)
    values["no_memory"] = True  # there are no earlier requests to draft from
    settings = prepared(_loaded(values), values)  # last: it may download
    as_json, log = values.get("json", False), log_file(values)
    verbose = values.get("verbose", False) or log is not None
    with EngineClient(engine_log(log, verbose)) as client:
        info = load(client, settings, verbose)
        structured = "json_schema" in params or "grammar" in params
        console.note(readout.start_line(info, structured))
        for note in info.notes:
            console.show(note)
        if request.chat is not None and not info.template:
            request = _continued(request, request.chat)
        if may_loop(params) and (as_json or values.get("quiet") or not sys.stdout.isatty()):
            request = replace(request, end_loops=True)
        show = None if as_json else lambda text, _: console.data(text)
        answer = generate(client, request, show, _result(request, info))
        plain = answer.plain
        interrupted = answer.finish_reason == "cancel"
        compare = values.get("compare") and not interrupted
        compared = _compare(client, request, answer, info) if compare else None
        if compared is not None and compared.finish_reason == "cancel":
            interrupted, compared = True, None
        if compared is not None:
            plain = compared_rate(compared.stats)
        _show(answer, compared, plain, info, as_json, values.get("verbose", False))
        why, error = cut_short(answer, info.n_ctx)
        if error is None and (why or interrupted):
            console.note(f"note: {why or 'stopped'}")
        if settings.calibrate and not interrupted and answer.unmeasured:
            calibrate(client)
    if log is not None:
        log.close()
    if error is not None:
        raise error
    return INTERRUPTED if interrupted else 0


def _loaded(values: Mapping[str, Any]) -> LoadSettings:
    return build.load_settings(values, kept_seconds=defaults.KEPT_SECONDS_OF_RUN)


def _request(values: Mapping[str, Any], params: JsonObject) -> protocol.Generate:
    prompt = typed_prompt(values)
    if values.get("raw"):
        if "system_prompt" in values:
            raise UsageError("-sys needs the chat template, --raw switches it off")
        return protocol.Generate(1, protocol.TextInput(prompt), params)
    if not prompt.strip():
        raise UsageError("the prompt is empty", "give some text with -p, -f or on standard input")
    messages = [{"role": "user", "content": prompt}]
    if "system_prompt" in values:
        messages.insert(0, {"role": "system", "content": values["system_prompt"]})
    variables = reasoning_variables(values.get("reasoning", "auto"))
    return protocol.Generate(1, protocol.ChatInput(messages, variables), params)


def _continued(request: protocol.Generate, chat: protocol.ChatInput) -> protocol.Generate:
    """The request for a model without a chat template: it goes on with the text of the prompt. Raises
    UsageError with a system message, for which there is no place.
    """
    if len(chat.messages) > 1:
        raise UsageError(
            "-sys needs a chat template, and this model has none", "write it at the start of the prompt"
        )
    console.note("the model has no chat template: it goes on with the text of the prompt")
    return replace(request, prompt=protocol.TextInput(chat.messages[-1]["content"]))


def _result(request: protocol.Generate, info: LoadInfo) -> GenerationResult:
    """The result of a request, before its first message."""
    return GenerationResult(None if request.chat is None else info.answer_reader(None))


def _compare(
    client: EngineClient, request: protocol.Generate, answer: GenerationResult, info: LoadInfo
) -> GenerationResult:
    """The same request without drafts."""
    params = {**request.params, "seed": answer.seed}
    id_ = client.next_id() + request.id
    plain = replace(request, id=id_, params=params, speculate=False)
    return generate(client, plain, into=_result(request, info))


def _show(
    answer: GenerationResult,
    compared: GenerationResult | None,
    plain: PlainRate,
    info: LoadInfo,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the object or the read-out. verbose: with all figures."""
    if as_json:
        args = (answer.text, answer.ids, answer.finish_reason, answer.seed, answer.stats, plain, info)
        result = readout.as_json(*args, answer.off_reason, answer.epsilon is not None)
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
        console.note(f"compare   = plain {compared.stats.decode_tps or 0:.1f} t/s, {same}")
