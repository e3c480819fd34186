"""Conversations as files: JSON of the schema specllama.chat/1, written whole or not at all, checked when
read. Does not know where they are stored; library.py does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specllama.calls.history import parsed_arguments
from specllama.cli.chat.conversation import Conversation, Turn, turn_messages
from specllama.client.protocol import EarlierTurn
from specllama.config.store import write_whole
from specllama.config.text_file import read_text
from specllama.core.sampling.params import MAX_BIAS, SamplingParams
from specllama.errors import NotFoundError, ResourceError, UsageError
from specllama.json_types import JsonObject, without_lone_surrogates

SCHEMA = "specllama.chat/1"
MAX_BYTES = 64 * 1024 * 1024
_KEYS = ("schema", "name", "system", "dropped", "messages", "params", "models", "options", "tokens")
_CUT = ("cancel", "length", "context")
_TOKENS = ("n_messages", "n_prompt", "ids", "digest", "prefix")
_SCHEMA = re.compile(r"specllama\.chat/([0-9]{1,9})")
_NOT_ONE = f"it is no conversation ({SCHEMA})"


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a file: a conversation, the sampling parameters that were set, the models. name: of the
    conversation; options: with which it was held, by their names; both are empty in a file of /save.
    """

    conversation: Conversation
    params: JsonObject = field(default_factory=dict)
    models: JsonObject = field(default_factory=dict)
    name: str = ""
    options: JsonObject = field(default_factory=dict)


def write(name: str, saved: Saved) -> Path:
    """Write the file, readable by its owner alone. Only a file that is a conversation is overwritten.

    Raises UsageError, ResourceError.
    """
    path = _path(name)
    if path.exists() or path.is_symlink():
        try:
            read(name)
        except (UsageError, NotFoundError) as error:
            raise UsageError(f"{error.message}; it is not overwritten", "save under another name") from None
    try:
        write_whole(path, as_text(saved), 0o600)
    except OSError as error:
        raise ResourceError(f"{path} cannot be written: {error.strerror or error}") from None
    return path


def rescue(saved: Saved) -> Path | None:
    """Write to a new file in the system's temporary directory; None where that is not possible."""
    name = time.strftime(f"chat-%Y%m%d-%H%M%S-{secrets.token_hex(4)}.json")
    with contextlib.suppress(OSError, ResourceError, UsageError):
        return write(str(Path(tempfile.gettempdir()) / name), saved)
    return None


def as_text(saved: Saved) -> str:
    """The text of a file."""
    conversation, params = saved.conversation, dict(saved.params)
    if "logit_bias" in params:  # JSON has no infinity
        params["logit_bias"] = {str(i): max(b, -MAX_BIAS) for i, b in params["logit_bias"].items()}
    content: JsonObject = {
        "schema": SCHEMA,
        "name": saved.name,
        "system": conversation.system,
        "dropped": _messages(conversation.dropped),
        "messages": _messages(conversation.turns),
        "params": params,
        "models": saved.models,
        "options": saved.options,
    }
    if saved.name and conversation.tokens is not None:  # in the library
        tokens = asdict(conversation.tokens)
        content["tokens"] = {**tokens, "ids": " ".join(map(str, tokens["ids"]))}
    content = {k: v for k, v in content.items() if v or k not in ("name", "dropped", "options")}
    return json.dumps(content, indent=1) + "\n"


def _messages(turns: Sequence[Turn]) -> list[JsonObject]:
    messages = list[JsonObject]()
    for turn in turns:
        messages += turn_messages(turn)
        if turn.answer is not None and turn.cut:
            messages[-1]["finish_reason"] = turn.cut
        if turn.answer is not None and turn.n_regenerated:
            messages[-1]["n_regenerated"] = turn.n_regenerated
    return messages


def read(name: str) -> Saved:
    """The conversation in a file. Raises NotFoundError, UsageError, each in one line."""
    path = _path(name)
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no file")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    return from_text(read_text(str(path), "", MAX_BYTES), path)


def from_text(text: str, path: Path) -> Saved:
    """The conversation in the text of a file. Raises UsageError, in one line."""
    data = _object(text, path)
    unknown = [key for key in data if key not in _KEYS]
    if unknown:
        raise UsageError(f"{path}: unknown key {unknown[0][:60]!r}", f"known: {', '.join(_KEYS)}")
    system, params, models = (data.get(k, d) for k, d in (("system", ""), ("params", {}), ("models", {})))
    if not isinstance(system, str):
        raise UsageError(f"{path}: system must be a text, not {_short(system)}")
    if not isinstance(params, dict):
        raise UsageError(f"{path}: params must be an object, not {_short(params)}")
    try:
        used = SamplingParams.merge(params)
    except UsageError as error:
        raise UsageError(f"{path}: params: {error.message[:200]}", error.hint) from None
    if not isinstance(models, dict):
        raise UsageError(f"{path}: models must be an object, not {_short(models)}")
    given = {name: getattr(used, name) for name, value in params.items() if value is not None}
    conversation = Conversation(
        without_lone_surrogates(system),
        _turns(path, data.get("messages"), "messages"),
        dropped=_turns(path, data.get("dropped", []), "dropped"),
        tokens=_tokens(path, data.get("tokens")),
    )
    name, options = data.get("name", ""), data.get("options", {})
    if not isinstance(name, str):
        raise UsageError(f"{path}: name must be a text, not {_short(name)}")
    if not isinstance(options, dict) or not all(isinstance(v, (str, int)) for v in options.values()):
        raise UsageError(f"{path}: options must be an object with texts and numbers, not {_short(options)}")
    return Saved(conversation, given, models, without_lone_surrogates(name), options)


def _path(name: str) -> Path:
    try:
        if name and "\0" not in name and len(os.fsencode(name)) <= 4096:
            return Path(name).expanduser()
    except (RuntimeError, UnicodeError):  # no such home; no such characters in this locale
        pass
    raise UsageError(f"{name[:60]!r} is not a usable path")


def _object(text: str, path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: {_NOT_ONE}, or it is damaged: {_damage(text, error)}") from None
    except (ValueError, RecursionError):  # a number of too many digits; too deeply nested
        raise UsageError(f"{path}: {_NOT_ONE}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema"), str):
        raise UsageError(f"{path}: {_NOT_ONE}")
    if data["schema"] != SCHEMA:
        why = f"its schema is {data['schema'][:60]!r}, not {SCHEMA!r}"
        newer = "a newer specllama wrote it: " if _SCHEMA.fullmatch(data["schema"]) else ""
        raise UsageError(f"{path}: {newer}{why}")
    return data


def _damage(text: str, error: json.JSONDecodeError) -> str:
    """What is wrong with a text that is no JSON, in a clause."""
    if not text.strip():
        return "it is empty"
    is_cut = error.msg.startswith("Unterminated") or not text[error.pos :].strip()
    return "its end is missing" if is_cut else f"line {error.lineno} is not valid JSON"


def _turns(path: Path, messages: Any, key: str) -> list[Turn]:
    """Turns from messages: the user's, or the results of all calls before, and the assistant's in turn; the
    last answer may be missing.
    """
    if not isinstance(messages, list):
        raise UsageError(f"{path}: {key} must be a list, not {_short(messages)}")
    turns: list[Turn] = []
    for i, message in enumerate(messages):
        calls = turns[-1].calls if turns and turns[-1].answer is not None else []
        answers = bool(turns) and turns[-1].answer is None and turns[-1].complete
        role = "assistant" if answers else "tool" if calls or (turns and not turns[-1].complete) else "user"
        _check(f"{path}: {key}[{i}]", message, role)
        text = without_lone_surrogates(message["content"])
        if role == "assistant":
            turns[-1].answer, turns[-1].calls = text, _calls(f"{path}: {key}[{i}]", message)
            turns[-1].cut = message.get("finish_reason", "")
            turns[-1].n_regenerated = message.get("n_regenerated", 0)
        elif role == "user":
            turns.append(Turn(text))
        else:
            if calls:
                turns.append(Turn("", n_results=len(calls)))
            turns[-1].results.append(message | {"content": text})
    if turns and not turns[-1].complete:
        raise UsageError(f"{path}: there are calls without results at the end of {key}")
    return turns


def _tokens(path: Path, tokens: Any) -> EarlierTurn | None:
    """The ids of the last answer and its prompt. Raises UsageError."""
    if tokens is None:
        return None
    if not isinstance(tokens, dict) or set(tokens) != set(_TOKENS):
        raise UsageError(f"{path}: tokens must have {', '.join(_TOKENS)}, not {_short(tokens)}")
    ids, counts = tokens["ids"], (tokens["n_messages"], tokens["n_prompt"])
    if not isinstance(ids, str) or not re.fullmatch(r"([0-9]{1,9}( [0-9]{1,9})*)?", ids):
        raise UsageError(f"{path}: tokens: ids must be numbers, not {_short(ids)}")
    if not all(map(_is_count, counts)):
        raise UsageError(f"{path}: tokens: n_messages and n_prompt must be numbers")
    if not isinstance(tokens["digest"], str) or not isinstance(tokens["prefix"], str):
        raise UsageError(f"{path}: tokens: digest and prefix must be texts")
    return EarlierTurn(*counts, list(map(int, ids.split())), tokens["digest"], tokens["prefix"])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


_MORE_KEYS = {
    "user": (),
    "assistant": ("tool_calls", "finish_reason", "n_regenerated"),
    "tool": ("tool_call_id", "name"),
}


def _check(where: str, message: Any, role: str) -> None:
    """Raises UsageError for a message of another role, or with content that its role does not allow."""
    allowed = {"role", "content", *_MORE_KEYS[role]}
    if not isinstance(message, dict) or not {"role", "content"} <= set(message):
        raise UsageError(f"{where} must have role and content, not {_short(message)}")
    if message["role"] != role:
        raise UsageError(f"{where}: role must be {role!r}, not {_short(message['role'])}")
    if unknown := set(message) - allowed:
        raise UsageError(f"{where} must have role and content and nothing else, not {min(unknown)[:60]!r}")
    if not isinstance(message["content"], str):
        raise UsageError(f"{where}: content must be a text, not {_short(message['content'])}")
    if message.get("finish_reason", "cancel") not in _CUT:
        raise UsageError(f"{where}: finish_reason must be one of {', '.join(_CUT)}")
    if not _is_count(message.get("n_regenerated", 0)):
        raise UsageError(f"{where}: n_regenerated must be a number")
    texts = [message.get(key, "") for key in _MORE_KEYS["tool"]]
    if not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{where}: {' and '.join(_MORE_KEYS['tool'])} must be texts")


def _calls(where: str, message: Any) -> list[JsonObject]:
    """The calls in an answer, their arguments as objects. Raises UsageError."""
    try:
        calls: list[JsonObject] = parsed_arguments([message])[0].get("tool_calls") or []
    except UsageError as error:
        raise UsageError(f"{where}: {error.message.removeprefix('messages[0].')}") from None
    if not all(isinstance(call.get("id"), str) for call in calls):
        raise UsageError(f"{where}: each of tool_calls must have an id")
    return calls


def _short(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
