"""`specllama run`: one prompt, one answer."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from specllama.cli import build, console, readout
from specllama.cli.progress import Progress
from specllama.core.stats import RunStats
from specllama.errors import SpecllamaError, UsageError
from specllama.process import messages as m
from specllama.process.client import EngineClient

INTERRUPTED = 130
_CALIBRATE_SECONDS = 1.0


@dataclass(slots=True)
class Answer:
    """A generation as it arrived."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    seed: int = 0
    reason: str = ""
    stats: RunStats = field(default_factory=RunStats)
    extra: dict[str, Any] = field(default_factory=dict)


def run(given: Mapping[str, Any]) -> int:
    """Generate and print; the exit code. Raises SpecllamaError."""
    values = build.resolved(given)
    params = build.sampling(values)
    settings = build.load_settings(values)
    request = _request(values, params)
    as_json, log = values.get("json", False), _log_file(values)
    verbose = values.get("verbose", False) or log is not None
    with EngineClient(log or (sys.stderr if verbose else None)) as client:
        progress = Progress(delay=1.0)
        info = client.load(settings, lambda name, share: progress.show(f"loading the {name}", share), verbose)
        progress.clear()
        console.note(readout.start_line(info))
        for text in info["notes"]:
            console.note(text if text.startswith("warning:") else f"note: {text}")
        answer = _generate(client, request, streaming=not as_json)
        plain = readout.plain_rate(answer.stats, answer.extra.get("stored_t1"))
        interrupted = answer.reason == "cancel"
        compared = _compare(client, request, answer) if values.get("compare") and not interrupted else None
        if compared is not None and compared.reason == "cancel":
            interrupted, compared = True, None
        if compared is not None:
            plain = readout.PlainRate(compared.stats.decode_tps, "run", compared.stats.rounds)
        _show(answer, compared, plain, info, as_json)
        if settings.calibrate and not interrupted and not answer.extra.get("stored_t1"):
            _calibrate(client)
    if log is not None:
        log.close()
    return INTERRUPTED if interrupted else 0


def _request(values: Mapping[str, Any], params: dict[str, Any]) -> m.Generate:
    prompt = _prompt(values)
    if values.get("raw"):
        if "system_prompt" in values:
            raise UsageError("-sys needs the chat template, --raw switches it off")
        return m.Generate(1, prompt=prompt, params=params)
    if not prompt.strip():
        raise UsageError("the prompt is empty", "give some text with -p, -f or on standard input")
    messages = [{"role": "user", "content": prompt}]
    if "system_prompt" in values:
        messages.insert(0, {"role": "system", "content": values["system_prompt"]})
    return m.Generate(1, messages=messages, params=params, variables=_reasoning(values))


def _reasoning(values: Mapping[str, Any]) -> dict[str, Any]:
    mode = values.get("reasoning", "auto")
    if mode not in ("on", "off", "auto"):
        raise UsageError(f"--reasoning must be on, off or auto, not {mode!r}")
    return {} if mode == "auto" else {"enable_thinking": mode == "on"}


def _prompt(values: Mapping[str, Any]) -> str:
    if "prompt" in values and "file" in values:
        raise UsageError("-p and -f are both given")
    if "prompt" in values:
        return str(values["prompt"])
    if "file" in values:
        return build.read_text(values["file"], "-f")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "there is no prompt", 'give one: specllama run -p "..." (or -f FILE, or on standard input)'
        )
    raw = sys.stdin.buffer.read()
    text = raw.decode("utf-8", "replace")
    if "�" in text and "�".encode() not in raw:
        console.warning("standard input is not all UTF-8; what is not was replaced")
    return text


def _log_file(values: Mapping[str, Any]) -> IO[str] | None:
    if "log_file" not in values:
        return None
    try:
        return Path(values["log_file"]).open("w", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--log-file: {values['log_file']} cannot be written: {error}") from None


def _generate(client: EngineClient, request: m.Generate, streaming: bool) -> Answer:
    """Run one request, text to stdout as it comes; Ctrl-C ends it and keeps what there is."""
    answer, progress = Answer(), Progress()
    events = client.generate(request)
    _take(answer, next(events), progress, client, streaming)
    with _first_interrupt(lambda: client.send(m.Cancel(request.id))):
        for event in events:
            _take(answer, event, progress, client, streaming)
    return answer


@contextlib.contextmanager
def _first_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C starts `action`, in a thread as this one may hold any lock; the second interrupts."""

    def act() -> None:
        with contextlib.suppress(SpecllamaError):
            action()

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        threading.Thread(target=act, daemon=True).start()

    previous = signal.getsignal(signal.SIGINT)
    if previous is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _take(
    answer: Answer, event: m.Message, progress: Progress, client: EngineClient, streaming: bool
) -> None:
    text = ""
    if isinstance(event, m.Started):
        answer.seed = event.params["seed"]
    elif isinstance(event, m.Prefilled):
        progress.show("reading the prompt", event.n_done / event.n_prompt, f"of {event.n_prompt} tokens")
    elif isinstance(event, m.Tokens):
        progress.clear()
        _, text, ids, *_ = event.items[0]
        answer.tokens += ids
    elif isinstance(event, m.Done):
        progress.clear()
        text, answer.reason, answer.extra = event.text, event.reason, event.extra
        answer.stats = RunStats.from_dict(event.stats)
    answer.text += text
    if streaming and text:
        console.data(text)
    while client.notices:
        console.note(f"note: {client.notices.pop(0)}")


def _compare(client: EngineClient, request: m.Generate, answer: Answer) -> Answer:
    """The same request without drafts."""
    params = {**request.params, "seed": answer.seed}
    plain = m.Generate(
        client.next_id() + request.id,
        request.messages,
        request.prompt,
        params=params,
        speculate=False,
        variables=request.variables,
    )
    return _generate(client, plain, streaming=False)


def _show(
    answer: Answer, compared: Answer | None, plain: readout.PlainRate, info: Mapping[str, Any], as_json: bool
) -> None:
    if as_json:
        known = answer.extra.get("epsilon") is not None
        args = (answer.text, answer.tokens, answer.reason, answer.seed, answer.stats, plain, info, known)
        result = readout.as_json(*args)
        if compared is not None:
            result["compare"] = {
                "decode_tps": compared.stats.decode_tps,
                "identical": compared.tokens == answer.tokens,
            }
        ascii_only = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        console.data(json.dumps(result, ensure_ascii=ascii_only) + "\n")
        return
    console.data("" if answer.text.endswith("\n") else "\n")
    console.note("")
    for line in readout.lines(answer.stats, plain):
        console.note(line)
    if answer.reason == "context":
        console.note(f"note: the context of {info['n_ctx']} tokens is full; -c makes it larger")
    if compared is not None:
        same = "the same text" if compared.tokens == answer.tokens else "ANOTHER text (see --exact)"
        console.note(f"compare   = plain {compared.stats.decode_tps or 0:.1f} t/s, {same}")


def _calibrate(client: EngineClient) -> None:
    """Use a second after the answer to learn what the next run wants to know."""
    try:
        client.calibrate(_CALIBRATE_SECONDS)
    except (SpecllamaError, KeyboardInterrupt):
        return
