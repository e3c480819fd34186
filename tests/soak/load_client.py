"""A client that sends random requests and checks the responses. Knows HTTP, no processes."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TIMEOUT = 120.0  # seconds without a byte
_NAMES = ("shutil.copytree", "zip", "open", "itertools.chain", "json.dumps", "pathlib.Path", "re.sub")
_WORDS = [
    "read", "write", "path", "file", "name", "self", "import", "return", "def", "class", "the", "of", "a",
    "list", "open", "close",
]  # fmt: skip
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"enum": ["a function", "a class", "a module"]},
    {
        "type": "object",
        "properties": {"name": {"enum": ["zip", "open"]}, "n": {"type": "integer", "maximum": 9}},
        "required": ["name", "n"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 5},
)  # fmt: skip
_BAD: tuple[tuple[str, str, Any, int], ...] = (
    ("POST", COMPLETIONS, b"{", 400),
    ("POST", COMPLETIONS, {"prompt": "x", "temperature": -1}, 400),
    ("POST", COMPLETIONS, {"prompt": "x", "n": 10**9}, 400),
    ("POST", COMPLETIONS, {"prompt": "x", "max_tokens": "many"}, 400),
    ("POST", COMPLETIONS, {"prompt": [10**8]}, 400),
    ("POST", COMPLETIONS, {"prompt": "zip " * 20_000}, 400),
    ("POST", CHAT, {"messages": []}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "model": 5}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "json_schema": {"type": "no"}}, 400),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "grammar": "root ::= ("}, 400),
    ("POST", CHAT, b'{"a": "' + b"x" * (5 << 20) + b'"}', 413),
    ("POST", "/tokenize", {"content": 5}, 400),
    ("GET", "/nothing", None, 404),
    ("DELETE", "/v1/models", None, 405),
)


@dataclass
class Outcomes:
    """How requests ended, and descriptions of those that ended wrongly. Thread-safe."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, end: str) -> None:
        with self._lock:
            self.counts[end] += 1

    def add_violation(self, what: str) -> None:
        with self._lock:
            self.counts["wrong"] += 1
            self.violations.append(what[:500])


class LoadClient(threading.Thread):
    """Sends random requests, the same for the same seed, until `stop` is set."""

    def __init__(
        self,
        connect: Callable[[float], http.client.HTTPConnection],
        seed: int,
        outcomes: Outcomes,
        stop: threading.Event,
    ) -> None:
        super().__init__(daemon=True)
        self._connect, self._random = connect, random.Random(seed)
        self._outcomes, self._stopped = outcomes, stop

    def run(self) -> None:
        while not self._stopped.is_set():
            kind = self._random.random()
            try:
                if kind < 0.12:
                    self._send_invalid()
                else:
                    self._send_valid(leaves=kind < 0.30)
            except Exception as error:  # noqa: BLE001 - whatever it is, the soak reports it
                self._outcomes.add_violation(f"{type(error).__name__}: {error}")
            self._stopped.wait(self._random.choice((0, 0, 0.01, 0.2)))

    def _request(self) -> tuple[str, dict[str, Any]]:
        r = self._random
        long = r.random() < 0.15
        fields: dict[str, Any] = {
            "max_tokens": r.randint(150, 400) if long else r.randint(1, 60),
            "stream": r.random() < 0.6,
            "temperature": r.choice((0, 0.7, 1.0)),
        }
        if r.random() < 0.5:
            fields["seed"] = r.randrange(2**32)
        if r.random() < 0.15:
            fields["n"] = r.randint(2, 3)
        if r.random() < 0.15:
            fields["speculation"] = {"enabled": False}
        if r.random() < 0.1:
            fields["ignore_eos"] = True
        if r.random() < 0.15:
            fields["json_schema"] = r.choice(_SCHEMAS)
        text = " ".join(r.choices(_WORDS, k=r.randint(100, 600) if long else r.randint(1, 20)))
        if r.random() < 0.5:
            question = f"What does {r.choice(_NAMES)} do? {text if long else ''}"
            return CHAT, {"messages": [{"role": "user", "content": question}], **fields}
        if r.random() < 0.1:
            fields["logprobs"] = r.randint(0, 5)
        return COMPLETIONS, {"prompt": f"def {text}", **fields}

    def _send_valid(self, leaves: bool) -> None:
        path, fields = self._request()
        link = self._connect(TIMEOUT)
        try:
            link.request("POST", path, json.dumps(fields).encode())
            if leaves and not fields["stream"]:
                time.sleep(self._random.uniform(0, 0.3))
                self._outcomes.add("left")
                return
            answer = link.getresponse()
            if answer.status != 200:
                self._refused(answer)
            elif not fields["stream"]:
                self._complete(json.loads(answer.read()), fields)
            elif self._stream(answer, fields, self._random.randint(0, 30) if leaves else None):
                self._outcomes.add("left")
        finally:
            link.close()

    def _refused(self, answer: http.client.HTTPResponse) -> None:
        """A clean refusal has a message and a Retry-After."""
        body = json.loads(answer.read())
        clean = answer.status in (429, 503) and body["error"]["message"] and answer.getheader("retry-after")
        if clean:
            self._outcomes.add("refused" if answer.status == 429 else "error")
        else:
            self._outcomes.add_violation(f"status {answer.status}: {body}")

    def _complete(self, body: dict[str, Any], fields: dict[str, Any]) -> None:
        choices = body["choices"]
        ended = all(c["finish_reason"] in ("stop", "length") for c in choices)
        if len(choices) == fields.get("n", 1) and ended and body["usage"]["completion_tokens"]:
            self._outcomes.add("text")
        else:
            self._outcomes.add_violation(f"an incomplete answer: {body}")

    def _stream(
        self, answer: http.client.HTTPResponse, fields: dict[str, Any], leave_after: int | None
    ) -> bool:
        """Reads the events; returns whether it left before the last."""
        events, ends, error = 0, 0, None
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]\n":
                break
            event = json.loads(line[6:])
            error = event.get("error")
            ends += sum(c["finish_reason"] in ("stop", "length") for c in event.get("choices", ()))
            events += 1
            if leave_after is not None and events > leave_after:
                return True
        else:
            self._outcomes.add_violation(f"a stream was cut off after {events} events")
            return False
        if error is not None and error["message"]:
            self._outcomes.add("error")
        elif ends == fields.get("n", 1):
            self._outcomes.add("text")
        else:
            self._outcomes.add_violation(f"a stream of {events} events has {ends} ends")
        return False

    def _send_invalid(self) -> None:
        method, path, body, status = self._random.choice(_BAD)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        link = self._connect(TIMEOUT)
        try:
            link.request(method, path, data)
            answer = link.getresponse()
            answer.read()
            if answer.status in (status, 429, 503):  # 429 and 503 come before validation
                self._outcomes.add("bad")
            else:
                self._outcomes.add_violation(f"{method} {path} got {answer.status}, not {status}")
        finally:
            link.close()
