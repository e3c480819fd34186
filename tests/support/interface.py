"""What users and their programs depend on: flags, TOML keys, JSON keys, metric names, the Python API.

`collect_*` look at the running program; tests/cli/test_frozen.py compares with tests/cli/frozen.json.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import specllama
from tests.support.command import Command
from tests.support.serving import Api

REPORTS: Mapping[str, tuple[str, ...]] = {
    "run": ("run", "-p", "zip", "-n", "8", "-s", "1", "--json"),
    "run with everything": (
        *("run", "-p", "zip", "-n", "24", "-s", "1", "--json", "--logprobs", "2", "--compare"),
        *("--draft-max", "4"),
        *("-j", '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}'),
    ),
    "pair-check": ("pair-check", "target.gguf", "draft.gguf", "--json"),
    "models": ("models", "--json"),
    "doctor": ("doctor", "--json"),
    "bench": ("bench", "--runs", "1", "-n", "8", "--workloads", "edit", "--k", "2", "--temp", "0", "--json"),
    "tune": ("tune", "--workloads", "edit", "-n", "8", "--json"),
}  # fmt: skip


def key_paths(data: Any, path: str = "") -> set[str]:
    """Every key of nested JSON, as `a.b[].c`; keys that are numbers, as those of rows, count as one `#`, and
    what a path is the key of as `@`.
    """
    if isinstance(data, Mapping):
        found = set()
        for key, value in data.items():
            name = re.sub(r"^-?\d+(\.\d+)?$", "#", str(key))
            name = "@" if "/" in name and ("." in name or name.startswith("/")) else name
            here = f"{path}.{name}" if path else name
            found |= {here} | key_paths(value, here)
        return found
    if isinstance(data, list):
        return {p for item in data for p in key_paths(item, f"{path}[]")}
    return set()


def collect_reports(command: Command) -> dict[str, list[str]]:
    """The keys of each command's `--json`, and of what it stored afterwards."""
    found = {}
    for name, line in REPORTS.items():
        result = command(*line, timeout=240)
        assert result.code == 0, result.err
        found[name] = sorted(key_paths(result.json))
    stored: set[str] = set()
    for file in sorted(command.cache.rglob("*.json")):
        stored |= key_paths(json.loads(file.read_text("utf-8")), file.parent.name)
    found["stored"] = sorted(stored)
    return found


def collect_responses(server: Api) -> dict[str, list[str]]:
    """The keys of the server's answers, by route."""
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
    chat = {"max_tokens": 8, "seed": 1, "logprobs": True, "top_logprobs": 1}
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    replies = {
        "GET /health": server.get("/health").json,
        "GET /v1/models": server.get("/v1/models").json,
        "GET /props": server.get("/props").json,
        "GET /slots": server.get("/slots").json,
        "POST /tokenize": server.post("/tokenize", {"content": "zip", "with_pieces": True}).json,
        "POST /detokenize": server.post("/detokenize", {"tokens": [5, 6]}).json,
        "POST /apply-template": server.post(
            "/apply-template", {"messages": [{"role": "user", "content": "zip"}]}
        ).json,
        "POST /v1/chat/completions": server.chat(**chat).json,
        "POST /v1/chat/completions, a schema": server.chat(response_format=schema, max_tokens=8).json,
        "POST /v1/chat/completions, streamed": server.chat(**chat, **stream).events,
        "POST /v1/completions": server.complete(max_tokens=8, logprobs=1).json,
        "POST /v1/completions, streamed": server.complete(max_tokens=8, logprobs=1, **stream).events,
        "POST /v1/completions, an error": server.complete(max_tokens=-9).json,
    }
    # Keys of logprobs.top_logprobs in /v1/completions are the tokens themselves.
    return {
        name: sorted(p for p in key_paths(data) if ".top_logprobs[]." not in p or "chat" in name)
        for name, data in replies.items()
    }


def collect_metrics(server: Api) -> list[str]:
    """The names of all metrics."""
    text = server.get("/metrics").body.decode()
    return sorted({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")})


def collect_python() -> dict[str, list[str]]:
    """What is public of each name in `specllama.__all__`: fields, methods and their parameters."""
    found = {}
    for name in specllama.__all__:
        one = getattr(specllama, name)
        parts = {f"({p})" for p in _parameters(one)}
        if dataclasses.is_dataclass(one):
            parts |= {f.name for f in dataclasses.fields(one) if not f.name.startswith("_")}
        for attribute, value in inspect.getmembers(one):
            if attribute.startswith("_") or attribute in dir(tuple) or attribute in dir(Exception):
                continue
            parts.add(attribute)
            if inspect.isfunction(value):
                parts |= {f"{attribute}({p})" for p in _parameters(value)}
        found[name] = sorted(parts)
    return found


def _parameters(one: Any) -> list[str]:
    try:
        return [p for p in inspect.signature(one).parameters if p not in ("self", "args", "kwargs")]
    except (TypeError, ValueError):
        return []


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Record it, one entry a line."""
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
